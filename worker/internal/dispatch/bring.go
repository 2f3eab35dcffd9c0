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
func (l *loop) bring(list []waitlist.Granted) {
	d := l.d
	for name, tasks := range byQueue(list, waitlist.Granted.Ref) {
		if server := d.cfg.Servers.Serving(name); server != nil {
			d.cfg.Moves.Go(func() { l.take(server, name, tasks) })
			continue
		}
		l.release(name, tasks)
	}
}

// byQueue sorts tasks by their queues, and keeps their order.
func byQueue[T any](list []T, ref func(T) waitlist.Ref) map[string][]T {
	sorted := map[string][]T{}
	for _, task := range list {
		name := ref(task).Queue
		sorted[name] = append(sorted[name], task)
	}
	return sorted
}

func idsOf[T any](list []T, ref func(T) waitlist.Ref) []string {
	ids := make([]string, len(list))
	for i, task := range list {
		ids[i] = ref(task).ID
	}
	return ids
}

func itself(ref waitlist.Ref) waitlist.Ref { return ref }

// release puts tasks of a queue into pending.
func (l *loop) release(name string, list []waitlist.Granted) {
	out, err := l.d.cfg.Mover.Release(l.d.cfg.Serving, name, idsOf(list, waitlist.Granted.Ref))
	l.d.cfg.Servers.Kick()
	l.logNotBrought(name, err)
	l.became(name, list, out)
}

func (l *loop) logNotBrought(name string, err error) {
	if err == nil || l.d.stopped() {
		return
	}
	if more, due := l.d.repeats.Due("bring "+name, time.Now()); due {
		l.d.cfg.Log.Warn("cannot bring tasks whose turn has come; they keep their places", "queue", name, "more", more, "error", err)
	}
}

// take moves tasks of a queue to a server, which runs them at their starts. A call without an answer is repeated under its lease:
// some tasks may be taken already.
func (l *loop) take(server *asynqx.Pacer, name string, list []waitlist.Granted) {
	d := l.d
	if list = l.stillOut(list); len(list) == 0 {
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
		l.logNotBrought(name, err)
		l.untake(name, lease, ids)
		return
	}
	l.hand(server, name, lease, list, messages)
	l.became(name, list, out)
}

// stillOut leaves out tasks that have ended since they were granted: asynq has counted a failure, and would count another.
func (l *loop) stillOut(list []waitlist.Granted) []waitlist.Granted {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return slices.DeleteFunc(list, func(g waitlist.Granted) bool {
		_, is := l.d.out[g.Ref()]
		return !is
	})
}

// untake puts tasks into pending after a call that may have taken them: those that it took, and those that still wait.
func (l *loop) untake(name, lease string, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.d.cfg.Serving), asynqx.TryFor)
	defer cancel()
	if err := l.d.cfg.Mover.GiveBack(ctx, name, lease, ids); err != nil {
		_, _ = l.d.cfg.Mover.Release(ctx, name, ids) // else they are overdue in a while
	}
	l.d.cfg.Servers.Kick()
}

// hand gives the tasks that were taken to a server, which hands out each in time for its start.
func (l *loop) hand(server *asynqx.Pacer, name, lease string, list []waitlist.Granted, messages []string) {
	d := l.d
	now, early := time.Now(), d.reach.early()
	var taken []*asynqx.Handout
	d.mu.Lock()
	for i, message := range messages {
		if message == "" {
			continue
		}
		h := asynqx.NewHandout(asynqx.QueuePrefix(name), lease, message, list[i].Starts.Add(-early))
		taken = append(taken, h)
		if sent, is := d.out[list[i].Ref()]; is && h.At.After(now) {
			sent.hands = h.At
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
// tried again for two seconds: a grant that has not come is overdue after three.
const (
	tryFor    = 2 * time.Second
	tryPause  = 2 * time.Millisecond
	mostPause = 100 * time.Millisecond
)

// became reports what became of tasks that were to be brought.
func (l *loop) became(name string, list []waitlist.Granted, out []asynqx.Outcome) {
	for i, outcome := range out {
		switch outcome {
		case asynqx.Active, asynqx.Gone:
			l.d.cfg.Moves.Go(func() { l.again(name, list[i], outcome) })
		case asynqx.Elsewhere:
			l.d.Ended(list[i].Ref())
		case asynqx.StandsStill:
			l.d.cfg.Queues.Note(name, true)
			_ = l.d.Unused(list[i].Ref())
		default: // it is here, or in pending; or its state is unknown, and it will be overdue soon
		}
	}
}

// again tries to bring one task, until it is no longer as it was.
func (l *loop) again(name string, g waitlist.Granted, was asynqx.Outcome) {
	d := l.d
	until := time.Now().Add(tryFor)
	for pause := tryPause; time.Now().Before(until); pause = min(2*pause, mostPause) {
		if !asynqx.Sleep(d.cfg.Serving, pause) {
			return
		}
		if len(l.stillOut([]waitlist.Granted{g})) == 0 { // it has come
			return
		}
		out, err := l.bringOne(name, g)
		if err != nil {
			continue
		}
		if was = out[0]; was != asynqx.Active && was != asynqx.Gone {
			l.became(name, []waitlist.Granted{g}, out)
			return
		}
	}
	if was == asynqx.Gone {
		d.Ended(g.Ref())
	}
}

// bringOne brings one task: to a server with a free slot, or else into pending, where it is first.
func (l *loop) bringOne(name string, g waitlist.Granted) ([]asynqx.Outcome, error) {
	d, ids := l.d, []string{g.ID}
	server := d.cfg.Servers.Serving(name)
	if server == nil {
		defer d.cfg.Servers.Kick()
		return d.cfg.Mover.Release(d.cfg.Serving, name, ids)
	}
	lease := asynqx.NewLease()
	messages, out, err := d.cfg.Mover.Take(d.cfg.Serving, name, lease, ids)
	if err == nil {
		l.hand(server, name, lease, []waitlist.Granted{g}, messages)
	}
	return out, err
}

// heedOverdue finds out what became of tasks that were granted a while ago and have not come. One that waits in asynq goes back to
// its place. Any other may have started. Tasks that could not be asked about are named again.
func (l *loop) heedOverdue(overdue []waitlist.Ref) {
	d := l.d
	for name, tasks := range byQueue(overdue, itself) {
		states, err := asynqx.States(d.cfg.Serving, d.cfg.Redis, name, idsOf(tasks, itself))
		if err != nil {
			if !d.stopped() {
				d.cfg.Observer.Failed("wake")
			}
			continue
		}
		for i, ref := range tasks {
			what := waitlist.Used
			if slices.Contains([]string{"scheduled", "retry", "pending"}, states[i]) {
				what = waitlist.Unused
			}
			_ = d.report(ref, what)
		}
	}
}

// releaseRefused puts tasks into pending that no rule will ever admit: their handler fails them, or has them wait for other limits.
func (l *loop) releaseRefused(refused []waitlist.Ref) {
	for name, tasks := range byQueue(refused, itself) {
		_, err := l.d.cfg.Mover.Release(l.d.cfg.Serving, name, idsOf(tasks, itself))
		l.logNotBrought(name, err)
	}
	if len(refused) > 0 {
		l.d.cfg.Servers.Kick()
	}
}

// GiveBack puts tasks that were taken and not handed out into pending, where any process can take them.
func (d *Dispatcher) GiveBack(list []*asynqx.Handout) {
	type group struct{ queue, lease string }
	var groups []group
	ids := map[group][]string{}
	d.mu.Lock()
	for _, h := range list {
		of := group{asynqx.QueueName(h.Queue), h.Lease}
		if ids[of] == nil {
			groups = append(groups, of)
		}
		ids[of] = append(ids[of], h.ID)
		maps.DeleteFunc(d.out, func(ref waitlist.Ref, _ sent) bool { // other processes may take it, and there is room for another
			return ref.Queue == of.queue && ref.ID == h.ID
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
