package dispatch

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// bring brings granted tasks to a server of this process, those of each queue in one call. Without a server of NewServer they go
// into pending.
func (o *loop) bring(list []waitlist.Granted) {
	d := o.d
	for name, its := range byQueue(list, waitlist.Granted.Ref) {
		if server := d.cfg.Servers.Serving(name); server != nil {
			d.cfg.Moves.Go(func() { o.take(server, name, its) })
			continue
		}
		o.release(name, its)
	}
}

// byQueue sorts what is of tasks by their queues, in its order.
func byQueue[T any](list []T, ref func(T) waitlist.Ref) map[string][]T {
	sorted := map[string][]T{}
	for _, one := range list {
		name := ref(one).Queue
		sorted[name] = append(sorted[name], one)
	}
	return sorted
}

func idsOf[T any](list []T, ref func(T) waitlist.Ref) []string {
	ids := make([]string, len(list))
	for i, one := range list {
		ids[i] = ref(one).ID
	}
	return ids
}

func itself(ref waitlist.Ref) waitlist.Ref { return ref }

// release puts tasks of a queue into pending.
func (o *loop) release(name string, list []waitlist.Granted) {
	out, err := o.d.cfg.Mover.Release(o.d.cfg.Serving, name, idsOf(list, waitlist.Granted.Ref))
	o.d.cfg.Servers.Kick()
	o.tellNotBrought(name, err)
	o.became(name, list, out)
}

func (o *loop) tellNotBrought(name string, err error) {
	if err == nil || o.d.stopped() {
		return
	}
	if more, due := o.d.repeats.Due("bring "+name, time.Now()); due {
		o.d.cfg.Log.Warn("cannot bring tasks whose turn has come; they keep their places", "queue", name, "more", more, "error", err)
	}
}

// take moves tasks of a queue to a server, which runs them at their starts. A call without an answer is repeated under its lease:
// some tasks may be taken already.
func (o *loop) take(server *asynqx.Pacer, name string, list []waitlist.Granted) {
	d := o.d
	if list = o.stillOut(list); len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.cfg.Serving), asynqx.LeaseFor/2)
	defer cancel()
	lease, ids := asynqx.NewLease(), idsOf(list, waitlist.Granted.Ref)
	messages, out, err := d.cfg.Mover.Take(ctx, name, lease, ids)
	if err == nil {
		d.reach.hand.note(time.Since(list[0].Starts.Add(-list[0].Wait)))
	}
	for pause := asynqx.TryPause; asynqx.MayPass(err) && !d.stopped() && asynqx.Sleep(ctx, pause); pause = min(2*pause, asynqx.TryMaxPause) {
		messages, out, err = d.cfg.Mover.Take(ctx, name, lease, ids)
	}
	if err != nil {
		o.tellNotBrought(name, err)
		o.untake(name, lease, ids)
		return
	}
	o.hand(server, name, lease, list, messages)
	o.became(name, list, out)
}

// stillOut leaves out tasks that have ended since they were granted: asynq has counted a failure, and would count another.
func (o *loop) stillOut(list []waitlist.Granted) []waitlist.Granted {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	return slices.DeleteFunc(list, func(g waitlist.Granted) bool {
		_, is := o.d.out[g.Ref()]
		return !is
	})
}

// untake puts tasks into pending after a call that may have taken them: those that it took, and those that still wait.
func (o *loop) untake(name, lease string, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.d.cfg.Serving), asynqx.TryFor)
	defer cancel()
	if err := o.d.cfg.Mover.GiveBack(ctx, name, lease, ids); err != nil {
		_, _ = o.d.cfg.Mover.Release(ctx, name, ids) // else they are overdue in a while
	}
	o.d.cfg.Servers.Kick()
}

// hand gives the tasks that were taken to a server, which hands out each in time for its start.
func (o *loop) hand(server *asynqx.Pacer, name, lease string, list []waitlist.Granted, messages []string) {
	d := o.d
	now, early := time.Now(), d.reach.early()
	var taken []*asynqx.Handout
	d.mu.Lock()
	for i, message := range messages {
		if message == "" {
			continue
		}
		its := asynqx.NewHandout(asynqx.QueuePrefix(name), lease, message, list[i].Starts.Add(-early))
		taken = append(taken, its)
		if sent, is := d.out[list[i].Ref()]; is && its.At.After(now) {
			sent.hands = its.At
			d.out[list[i].Ref()] = sent
		}
	}
	d.mu.Unlock()
	d.cfg.Observer.DispatchLead(d.reach.lead())
	if len(taken) > 0 && !server.Put(taken...) {
		d.GiveBack(taken)
	}
}

// A task whose turn comes while it is being put back is still active, and one that is being enqueued may not be there yet. Both are
// tried again for two seconds: a grant that has not come is overdue after three. The pauses double, so that one that takes long costs
// few calls, up to what a start may be late.
const (
	tryFor    = 2 * time.Second
	tryPause  = 2 * time.Millisecond
	mostPause = 100 * time.Millisecond
)

// became reports what became of tasks that were to be brought.
func (o *loop) became(name string, list []waitlist.Granted, out []asynqx.Outcome) {
	for i, outcome := range out {
		switch outcome {
		case asynqx.Active, asynqx.Gone:
			o.d.cfg.Moves.Go(func() { o.again(name, list[i], outcome) })
		case asynqx.Elsewhere:
			o.d.Ended(list[i].Ref())
		case asynqx.StandsStill:
			o.d.cfg.Queues.Note(name, true)
			_ = o.d.Unused(list[i].Ref())
		default: // it is here, or in pending; or nobody knows, and it is overdue in a while
		}
	}
}

// again tries to bring one task, until it is no longer as it was.
func (o *loop) again(name string, g waitlist.Granted, was asynqx.Outcome) {
	d := o.d
	until := time.Now().Add(tryFor)
	for pause := tryPause; time.Now().Before(until); pause = min(2*pause, mostPause) {
		if !asynqx.Sleep(d.cfg.Serving, pause) {
			return
		}
		if len(o.stillOut([]waitlist.Granted{g})) == 0 { // it has come
			return
		}
		out, err := o.bringOne(name, g)
		if err != nil {
			continue
		}
		if was = out[0]; was != asynqx.Active && was != asynqx.Gone {
			o.became(name, []waitlist.Granted{g}, out)
			return
		}
	}
	if was == asynqx.Gone {
		d.Ended(g.Ref())
	}
}

// bringOne brings one task: to a server with a free slot, or else into pending, where it is first.
func (o *loop) bringOne(name string, g waitlist.Granted) ([]asynqx.Outcome, error) {
	d, ids := o.d, []string{g.ID}
	server := d.cfg.Servers.Serving(name)
	if server == nil {
		defer d.cfg.Servers.Kick()
		return d.cfg.Mover.Release(d.cfg.Serving, name, ids)
	}
	lease := asynqx.NewLease()
	messages, out, err := d.cfg.Mover.Take(d.cfg.Serving, name, lease, ids)
	if err == nil {
		o.hand(server, name, lease, []waitlist.Granted{g}, messages)
	}
	return out, err
}

// heedOverdue finds out what became of tasks that were granted a while ago and have not come. One that waits in asynq goes back to
// its place. Any other may have started. Tasks that could not be asked about are named again.
func (o *loop) heedOverdue(overdue []waitlist.Ref) {
	d := o.d
	for name, its := range byQueue(overdue, itself) {
		states, err := asynqx.States(d.cfg.Serving, d.cfg.Redis, name, idsOf(its, itself))
		if err != nil {
			if !d.stopped() {
				d.cfg.Observer.Failed("wake")
			}
			continue
		}
		for i, ref := range its {
			switch states[i] {
			case "scheduled", "retry", "pending":
				_ = d.Unused(ref)
			default:
				_ = d.report(ref, waitlist.Used)
			}
		}
	}
}

// releaseRefused puts tasks into pending that no rule will ever admit: their handler fails them, or has them wait for other limits.
func (o *loop) releaseRefused(refused []waitlist.Ref) {
	for name, its := range byQueue(refused, itself) {
		_, err := o.d.cfg.Mover.Release(o.d.cfg.Serving, name, idsOf(its, itself))
		o.tellNotBrought(name, err)
	}
	if len(refused) > 0 {
		o.d.cfg.Servers.Kick()
	}
}

// GiveBack puts tasks that were taken and not handed out into pending, where any process can take them.
func (d *Dispatcher) GiveBack(list []*asynqx.Handout) {
	type group struct{ queue, lease string }
	var groups []group
	ids := map[group][]string{}
	d.mu.Lock()
	for _, its := range list {
		of := group{asynqx.QueueName(its.Queue), its.Lease}
		if ids[of] == nil {
			groups = append(groups, of)
		}
		ids[of] = append(ids[of], its.ID)
		maps.DeleteFunc(d.out, func(ref waitlist.Ref, _ sent) bool { // other processes may take it, and there is room for another
			return ref.Queue == of.queue && ref.ID == its.ID
		})
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

// giveBackUnder gives back the tasks of one lease, repeatedly until Redis answers or ctx ends. A process that stops tries once.
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
