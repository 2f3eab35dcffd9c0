package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// takeGranted moves granted tasks of a queue to a server of this process, which runs them at their
// starts. A call without an answer is repeated: some tasks may be taken already.
func (d *Dispatcher) takeGranted(one *watch, g *asynqx.Pacer, name string, list []throttle.Granted, ids []string) {
	if list, ids = d.stillOut(one, list, ids); len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.cfg.Serving), asynqx.LeaseFor/2)
	defer cancel()
	lease := asynqx.NewLease()
	messages, out, err := d.cfg.Mover.Take(ctx, name, lease, ids)
	if err == nil {
		d.reach.hand.note(time.Since(list[0].Starts().Add(-list[0].Wait)))
	}
	for pause := asynqx.TryPause; asynqx.MayPass(err) && !d.stopped() && asynqx.Sleep(ctx, pause); pause = min(2*pause, asynqx.TryMaxPause) {
		messages, out, err = d.cfg.Mover.Take(ctx, name, lease, ids)
	}
	if err != nil {
		d.tellUnreleased(name, err)
		out, messages = d.untake(name, lease, ids), nil
	}
	d.handOut(one, g, name, lease, list, messages)
	d.answered(one, name, list, ids, out)
}

// stillOut drops tasks that have ended since they were granted: asynq has counted a failure, and would
// count another.
func (d *Dispatcher) stillOut(one *watch, list []throttle.Granted, ids []string) (out []throttle.Granted, its []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, g := range list {
		if _, is := one.out[g.ID]; is {
			out, its = append(out, g), append(its, ids[i])
		}
	}
	return out, its
}

// untake puts tasks into pending after a call that may have taken them: the taken ones, and those that
// still wait.
func (d *Dispatcher) untake(name, lease string, ids []string) []asynqx.Outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.cfg.Serving), asynqx.TryFor)
	defer cancel()
	if err := d.cfg.Mover.GiveBack(ctx, name, lease, ids); err == nil {
		d.cfg.Servers.Kick()
		return nil // a task that is gone is reported again when it is overdue
	}
	out, _ := d.cfg.Mover.Release(ctx, name, ids)
	d.cfg.Servers.Kick()
	return out
}

// handOut gives the taken tasks to a server, which hands out each at its time.
func (d *Dispatcher) handOut(one *watch, g *asynqx.Pacer, name, lease string, list []throttle.Granted, messages []string) {
	now, early := time.Now(), d.reach.early()
	var taken []*asynqx.Handout
	d.mu.Lock()
	for i, message := range messages {
		if message == "" {
			continue
		}
		starts := list[i].Starts()
		its := asynqx.NewHandout(asynqx.QueuePrefix(name), lease, message, starts.Add(-early))
		taken = append(taken, its)
		if sent, is := one.out[list[i].ID]; is && its.At.After(now) {
			sent.hands = its.At
			one.out[list[i].ID] = sent
		}
	}
	d.mu.Unlock()
	d.cfg.Observer.DispatchLead(d.reach.lead())
	if len(taken) > 0 && !g.Put(taken...) {
		d.GiveBack(taken)
	}
}

// answered records the outcomes of tasks that could not be taken, for the next poll.
func (d *Dispatcher) answered(one *watch, name string, list []throttle.Granted, ids []string, out []asynqx.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, became := range out {
		if became != asynqx.Moved || one.missed[list[i].ID] {
			one.later = append(one.later, answer{place: list[i].WaiterRef, queue: name, id: ids[i], became: became})
			one.kick()
		}
	}
}

// GiveBack puts tasks that were taken and not handed out into pending, where any process can take them.
func (d *Dispatcher) GiveBack(list []*asynqx.Handout) {
	type group struct{ queue, lease string }
	var groups []group
	ids := map[group][]string{}
	d.mu.Lock()
	for _, its := range list {
		name := asynqx.QueueName(its.Queue)
		if ids[group{name, its.Lease}] == nil {
			groups = append(groups, group{name, its.Lease})
		}
		ids[group{name, its.Lease}] = append(ids[group{name, its.Lease}], its.ID)
		for _, one := range d.watches {
			delete(one.out, queue.Ticket(name, its.ID)) // other processes may handle it, and there is room for another
		}
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.cfg.Serving), asynqx.LeaseFor)
	defer cancel()
	for _, g := range slices.Backward(groups) { // each goes before the tasks in pending
		if err := d.giveBackUnder(ctx, g.queue, g.lease, ids[g]); err != nil {
			d.cfg.Log.Warn("cannot put back tasks that were not started; asynq recovers them when their lease ends",
				"queue", g.queue, "tasks", len(ids[g]), "error", err)
			if asynqx.MayPass(err) {
				break // Redis is still away
			}
		}
	}
	d.cfg.Servers.Kick()
}

// giveBackUnder gives back the tasks of one lease, repeatedly until Redis answers or ctx ends. A
// process that stops tries once.
func (d *Dispatcher) giveBackUnder(ctx context.Context, name, lease string, ids []string) error {
	for pause := asynqx.TryPause; ; pause = min(2*pause, asynqx.TryMaxPause) {
		bounded, done := context.WithTimeout(ctx, asynqx.TryFor)
		err := d.cfg.Mover.GiveBack(bounded, name, lease, ids)
		done()
		if !asynqx.MayPass(err) || d.stopped() || !asynqx.Sleep(ctx, pause) {
			return err
		}
	}
}
