package queue

import (
	"context"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
)

// ReasonOf returns the reason that the rule that binds a waiting task stands for, as
// throttle.WaiterStatus has both; upstream says that its API asked not to be called. It is empty if no
// rule binds it.
func ReasonOf(b policy.MatchedRule, upstream bool) Reason {
	switch {
	case upstream:
		return ReasonUpstream
	case b.Paused():
		return ReasonPaused
	case b.Rule.Name == "":
		return ""
	case b.Rule.Limit == 0:
		return ReasonSuspended
	case b.Rule.Algorithm == policy.Concurrency:
		return ReasonRun
	}
	return ReasonRule
}

// inspect asks what a task that was just placed waits for, and when it starts. If Redis does not
// answer, the result stays as it is.
func (p *planner) inspect(ctx context.Context, r *Result, ask waitlist.Waiter) {
	s, err := inspect.Of(p.limiter.Waitlist()).Task(ctx, ask.Ref())
	if err != nil || !s.Waits {
		return
	}
	r.Reason, r.Binding = ReasonOf(s.Binding, s.Paused), bindingOf(s, ask)
	if s.Expected.Known() {
		r.Start, r.StartFrom, r.StartTo = momentsOf(s.Expected)
	}
}

// bindingOf returns the rule that a task waits for, and of a pause by an API the task's scope alone.
func bindingOf(s inspect.WaiterStatus, ask waitlist.Waiter) Binding {
	if s.Paused {
		return Binding{Scope: ask.Scope}
	}
	return Binding{s.Binding.Scope.String(), s.Binding.Rule.Name}
}

// momentsOf returns an estimate by the local clock; from and to are zero if it rests on no runs.
func momentsOf(e inspect.Estimate) (at, from, to time.Time) {
	now := time.Now()
	if at = now.Add(e.In); e.To == e.From {
		return at, from, to
	}
	return at, now.Add(e.From), now.Add(e.To)
}

// untold are the tasks of a batch that wait and whose starts are not known: those of one scope, queue
// and priority start in their order.
type untold map[untoldKey]*untoldTasks

type untoldKey struct {
	scope, queue string
	priority     int
}

type untoldTasks struct {
	last  waitlist.Waiter
	tasks int
}

// mostUntold bounds what is inspected for a Summary: each costs a round trip.
const mostUntold = 64

// add adds a task. It leaves out what is beyond mostUntold.
func (u untold) add(it *item) {
	key := untoldKey{it.ask.Scope, it.result.Queue, it.ask.Priority}
	one := u[key]
	if one == nil {
		if len(u) >= mostUntold {
			return
		}
		one = &untoldTasks{}
		u[key] = one
	}
	one.last = it.ask
	one.tasks++
}

// inspectUntold asks when the last tasks start, and updates the summary. If Redis does not answer, their
// starts stay unknown.
func (p *planner) inspectUntold(ctx context.Context, sum *Summary, of untold) {
	for _, one := range of {
		s, err := inspect.Of(p.limiter.Waitlist()).Task(ctx, one.last.Ref())
		if err != nil {
			return
		}
		if s.Waits && !s.Expected.Known() {
			continue
		}
		sum.Untold -= one.tasks
		if at, from, to := momentsOf(s.Expected); s.Waits && at.After(sum.DoneAt) {
			sum.DoneAt, sum.DoneFrom, sum.DoneTo = at, from, to
			sum.Binding = bindingOf(s, one.last)
		}
	}
}
