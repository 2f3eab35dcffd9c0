package throttle

import (
	"maps"
	"sync"

	"github.com/headway-go/headway/throttle/policy"
)

// Spent is the amount that a grant took, or a correction of it.
type Spent struct {
	// Scope is the scope as the request named it.
	Scope string
	// Member is the scope of the pool's member that was granted, github/@alice; empty for none.
	Member string
	// Tasks is 1 for a grant, -1 for a refund and 0 for a settlement.
	Tasks int64
	// Units is Request.Cost, or the requests of Request.Costs. It is negative for units that come back.
	Units int64
	// Costs is the amount by unit, requests included if the request named them; nil for a request without Costs. Do not change or
	// keep it.
	Costs policy.Costs
}

// spentGrant is what Config.OnSpent knows of a grant. Copies of the grant share it. It is safe for concurrent use; nil is a
// grant that was not reported.
type spentGrant struct {
	report func(Spent)
	scope  string
	member string

	mu       sync.Mutex
	units    int64        // of a request without costs
	costs    policy.Costs // by unit, once there are any
	refunded bool
}

// reportSpent calls Config.OnSpent, which is not nil, for an allowed request, but for one with a Waiter.
func (l *Limiter) reportSpent(d *Decision, req *Request) {
	if req.Waiter.ID != "" || req.takesNothing() || d.replayed {
		return
	}
	spent := Spent{Scope: req.Scope, Member: d.Grant.MemberScope(), Tasks: 1, Units: max(req.Cost, defaultCost), Costs: req.Costs}
	if len(req.Costs) > 0 {
		spent.Units = req.Costs.Of(policy.Requests)
	}
	if !d.Grant.Zero() {
		d.Grant.spent = &spentGrant{report: l.cfg.OnSpent, scope: req.Scope, member: spent.Member, units: spent.Units, costs: maps.Clone(req.Costs)}
	}
	l.cfg.OnSpent(spent)
}

// settled reports how much more of each unit was spent than was reported before.
func (s *spentGrant) settled(costs policy.Costs) {
	s.unlessRefunded(func() {
		if len(s.costs) == 0 {
			s.costs = policy.Costs{policy.Requests: s.units}
		}
		more := policy.Costs{}
		for unit, n := range costs {
			if d := n - s.costs.Of(unit); d != 0 {
				more[unit], s.costs[unit] = d, n
			}
		}
		if len(more) > 0 {
			s.report(Spent{Scope: s.scope, Member: s.member, Units: more[policy.Requests], Costs: more})
		}
	})
}

// refund takes back what was reported, once.
func (s *spentGrant) refund() {
	s.unlessRefunded(func() {
		s.refunded = true
		back := Spent{Scope: s.scope, Member: s.member, Tasks: -1, Units: -s.units}
		if len(s.costs) > 0 {
			back.Units, back.Costs = -s.costs.Of(policy.Requests), make(policy.Costs, len(s.costs))
			for unit, n := range s.costs {
				back.Costs[unit] = -n
			}
		}
		s.report(back)
	})
}

func (s *spentGrant) unlessRefunded(do func()) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.refunded {
			do()
		}
	}
}
