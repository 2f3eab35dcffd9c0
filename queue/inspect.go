package queue

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle"
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
func (p *planner) inspect(ctx context.Context, r *Result, ask throttle.Waiter) {
	s, err := p.limiter.Waitlist().InspectWaiter(ctx, ask)
	if err != nil || !s.Waits {
		return
	}
	r.Reason, r.Binding = ReasonOf(s.Binding, s.Paused), Binding{s.Binding.Scope.String(), s.Binding.Rule.Name}
	if s.Expected.Known() {
		r.Start, r.StartFrom, r.StartTo = momentsOf(s.Expected)
	}
}

// momentsOf returns an estimate by the local clock; from and to are zero if it rests on no runs.
func momentsOf(e throttle.Estimate) (at, from, to time.Time) {
	now := time.Now()
	if at = now.Add(e.In); e.To == e.From {
		return at, from, to
	}
	return at, now.Add(e.From), now.Add(e.To)
}

// untold are the tasks of a batch that wait, by scope, and whose starts are not known.
type untold map[string]*untoldScope

type untoldScope struct {
	last  throttle.Waiter
	tasks int
}

// mostUntold bounds the scopes that are inspected for a Summary: each costs a round trip.
const mostUntold = 64

// add adds a task. It leaves out scopes beyond mostUntold.
func (u untold) add(ask throttle.Waiter) {
	one := u[ask.Scope]
	if one == nil {
		if len(u) >= mostUntold {
			return
		}
		one = &untoldScope{}
		u[ask.Scope] = one
	}
	one.last = ask
	one.tasks++
}

// inspectUntold asks when the last task of each scope starts, and counts what that tells in the
// summary. If Redis does not answer, they stay unknown.
func (p *planner) inspectUntold(ctx context.Context, sum *Summary, of untold) {
	for _, one := range of {
		s, err := p.limiter.Waitlist().InspectWaiter(ctx, one.last)
		if err != nil {
			return
		}
		if s.Parked || s.Waits && !s.Expected.Known() {
			continue
		}
		sum.Untold -= one.tasks
		if at, from, to := momentsOf(s.Expected); s.Waits && at.After(sum.DoneAt) {
			sum.DoneAt, sum.DoneFrom, sum.DoneTo = at, from, to
			sum.Binding = Binding{s.Binding.Scope.String(), s.Binding.Rule.Name}
		}
	}
}
