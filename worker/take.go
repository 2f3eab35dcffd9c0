package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// askStates returns what asynq says tasks of a queue are, "" where it has no such task: all in one round trip where its keys
// are known, and each in two where they are not.
func (w *waker) askStates(name string, tasks []inQueue) ([]string, error) {
	if w.mover.Known {
		return w.states(w.t.serving, name, tasks, false)
	}
	out := make([]string, len(tasks))
	for i, p := range tasks {
		info, err := w.t.inspector.GetTaskInfo(name, p.id)
		if err == nil {
			out[i] = info.State.String()
		} else if !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
			return nil, err
		}
	}
	return out, nil
}

// takeGranted moves granted tasks of a queue to a server of this process, which runs them at their starts. What does not answer
// is asked again: some may be taken already.
func (w *waker) takeGranted(one *watch, g *asynqx.Pacer, name string, list []throttle.Granted, ids []string) {
	if list, ids = w.stillOut(one, list, ids); len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.serving), asynqx.LeaseFor/2)
	defer cancel()
	lease := asynqx.NewLease()
	messages, out, err := w.mover.Take(ctx, name, lease, ids)
	if err == nil {
		w.reach.hand.note(time.Since(list[0].Starts().Add(-list[0].Wait)))
	}
	for pause := asynqx.TryPause; asynqx.MayPass(err) && !w.t.stopped() && asynqx.Sleep(ctx, pause); pause = min(2*pause, asynqx.TryMaxPause) {
		messages, out, err = w.mover.Take(ctx, name, lease, ids)
	}
	if err != nil {
		w.tellUnreleased(name, err)
		out, messages = w.untake(name, lease, ids), nil
	}
	w.handOut(one, g, name, lease, list, messages)
	w.answered(one, name, list, ids, out)
}

// stillOut leaves out those that have ended since they were granted: asynq has counted a failure, and would count another.
func (w *waker) stillOut(one *watch, list []throttle.Granted, ids []string) (out []throttle.Granted, its []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, g := range list {
		if _, is := one.out[g.ID]; is {
			out, its = append(out, g), append(its, ids[i])
		}
	}
	return out, its
}

// untake puts tasks into pending of which it is not known whether they were taken: those that were, and those that wait.
func (w *waker) untake(name, lease string, ids []string) []asynqx.Outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.serving), asynqx.TryFor)
	defer cancel()
	if err := w.mover.GiveBack(ctx, name, lease, ids); err == nil {
		w.t.servers.Kick()
		return nil // what is not there any more is named again when it is overdue
	}
	out, _ := w.mover.Release(ctx, name, ids)
	w.t.servers.Kick()
	return out
}

// handOut has a server hand out what was taken, each at its time.
func (w *waker) handOut(one *watch, g *asynqx.Pacer, name, lease string, list []throttle.Granted, messages []string) {
	now, early := time.Now(), w.reach.early()
	var taken []*asynqx.Handout
	w.mu.Lock()
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
	w.mu.Unlock()
	w.t.observer.DispatchLead(w.reach.lead())
	if len(taken) > 0 && !g.Put(taken...) {
		w.giveBack(taken)
	}
}

// answered notes what became of those that could not be taken, for the next look.
func (w *waker) answered(one *watch, name string, list []throttle.Granted, ids []string, out []asynqx.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, became := range out {
		if became != asynqx.Moved || one.missed[list[i].ID] {
			one.later = append(one.later, answer{list[i].WaiterRef, name, ids[i], became})
			one.kick()
		}
	}
}

// giveBack puts tasks that were taken, and not handed out, into pending: they are no more this process's than anybody's.
func (w *waker) giveBack(list []*asynqx.Handout) {
	type group struct{ queue, lease string }
	var groups []group
	ids := map[group][]string{}
	w.mu.Lock()
	for _, its := range list {
		name := asynqx.QueueName(its.Queue)
		if ids[group{name, its.Lease}] == nil {
			groups = append(groups, group{name, its.Lease})
		}
		ids[group{name, its.Lease}] = append(ids[group{name, its.Lease}], its.ID)
		for _, one := range w.watches {
			delete(one.out, queue.Ticket(name, its.ID)) // others may see to it, and there is room for another
		}
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.serving), asynqx.LeaseFor)
	defer cancel()
	for _, g := range slices.Backward(groups) { // each goes before what is in pending
		if err := w.giveBackUnder(ctx, g.queue, g.lease, ids[g]); err != nil {
			w.t.log.Warn("cannot put back tasks that were not started; asynq recovers them when their lease ends",
				"queue", g.queue, "tasks", len(ids[g]), "error", err)
			if asynqx.MayPass(err) {
				break // Redis is still away
			}
		}
	}
	w.t.servers.Kick()
}

// giveBackUnder gives tasks back that were taken under one lease, again until Redis answers or ctx is over. A Middleware
// that ends tries once.
func (w *waker) giveBackUnder(ctx context.Context, name, lease string, ids []string) error {
	for pause := asynqx.TryPause; ; pause = min(2*pause, asynqx.TryMaxPause) {
		bounded, done := context.WithTimeout(ctx, asynqx.TryFor)
		err := w.mover.GiveBack(bounded, name, lease, ids)
		done()
		if !asynqx.MayPass(err) || w.t.stopped() || !asynqx.Sleep(ctx, pause) {
			return err
		}
	}
}
