package queue

import (
	"context"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
)

// ReasonOf returns the reason that the rule that binds a waiting task stands for, as throttle.WaiterStatus has both; upstream
// says that its API asked not to be called. It is empty if no rule binds it.
func ReasonOf(b policy.MatchedRule, upstream bool) Reason {
	switch {
	case upstream:
		return ReasonUpstream
	case b.Paused():
		return ReasonPaused
	case b.Rule.Name == "":
		return ""
	case b.Rule.Name == policy.MembersRule:
		return ReasonMember
	case b.Rule.Limit == 0:
		return ReasonSuspended
	case b.Rule.Algorithm == policy.Concurrency:
		return ReasonRun
	}
	return ReasonRule
}

// inspect asks what a task that was just placed waits for, and when it starts. If Redis does not
// answer, the result stays as it is.
func (c *Client) inspect(ctx context.Context, r *Result, w waitlist.Waiter) {
	s, err := inspect.Of(c.cfg.Limiter.Waitlist()).Task(ctx, w.Ref())
	if err != nil || !s.Waits {
		return
	}
	r.Reason, r.Binding = ReasonOf(s.Binding, s.Paused), bindingOf(s, w)
	if s.Expected.Known() {
		r.Start, r.StartFrom, r.StartTo = momentsOf(s.Expected)
	}
}

// bindingOf returns the rule that a task waits for, and of a pause by an API the task's scope alone.
func bindingOf(s inspect.WaiterStatus, w waitlist.Waiter) Binding {
	if s.Paused {
		return Binding{Scope: w.Scope}
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

// unknownStarts are the tasks of a batch that wait and whose starts are not known. Those of one scope, queue
// and priority start in their order, so the last of them is inspected.
type unknownStarts map[lineKey]lastWaiter

type lineKey struct {
	scope, queue string
	priority     int
}

type lastWaiter struct {
	waitlist.Waiter
	tasks int // this one and those before it
}

// mostInspected bounds what is inspected for a Summary: each costs a round trip.
const mostInspected = 64

// add adds a task, unless mostInspected others come first.
func (u unknownStarts) add(w waitlist.Waiter) {
	key := lineKey{w.Scope, w.Queue, w.Priority}
	if last, known := u[key]; known || len(u) < mostInspected {
		u[key] = lastWaiter{w, last.tasks + 1}
	}
}

// inspectUnknown asks when the last tasks start, and updates the summary. If Redis does not answer, their starts stay unknown.
func (c *Client) inspectUnknown(ctx context.Context, sum *Summary, unknown unknownStarts) {
	for _, last := range unknown {
		s, err := inspect.Of(c.cfg.Limiter.Waitlist()).Task(ctx, last.Ref())
		if err != nil {
			return
		}
		if s.Waits && !s.Expected.Known() {
			continue
		}
		sum.UnknownStarts -= last.tasks
		if at, from, to := momentsOf(s.Expected); s.Waits && at.After(sum.DoneAt) {
			sum.DoneAt, sum.DoneFrom, sum.DoneTo = at, from, to
			sum.Binding = bindingOf(s, last.Waiter)
		}
	}
}
