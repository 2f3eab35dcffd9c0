package throttle

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// plan is a scope compiled under a policy: what scripts take, and what decisions show. It never changes.
type plan struct {
	*wire.Scope
	limiter *Limiter
	clock   *wire.Clock // of the server that decides
	states  []RuleState // what is known of each rule before it is asked
	mark    string      // of the scope, in attempt ids; see attemptID
	shadows []*shadowRule
	alone   *shadowRule // it is this rule's alone

	refusal error  // the application may not spend from the scope
	pool    string // the place of its pool in the policy
}

// newPlan is what wire.Scopes attaches to a scope.
func (l *Limiter) newPlan(s *wire.Scope, pol *policy.Policy) any {
	p := &plan{Scope: s, limiter: l, clock: l.clocks.Of(s.Prefix), mark: scopeMark(s.Scope)}
	p.refusal = pol.Authorize(s.Scope, l.cfg.App)
	if s.Pool != nil {
		p.pool = pol.PoolPattern(s.Pool.Level)
	}
	p.states = statesOf(s, s.Rules)
	for _, i := range s.Paused { // whatever else its requests would wait for, they wait as long
		if left := p.patience(0); left != Never {
			p.states[i].MaxWait = left
		}
	}
	for _, b := range s.Shadows {
		p.shadows = append(p.shadows, &shadowRule{of: p, bound: b})
	}
	return p
}

// statesOf returns what is known of rules of a scope before they are asked.
func statesOf(s *wire.Scope, rules []policy.MatchedRule) (states []RuleState) {
	for _, b := range rules {
		info := RuleInfoOf(b)
		if b.Rule.Algorithm == policy.Calendar && b.Rule.Limit > 0 {
			info.Window = us(s.Until - s.From)
		}
		states = append(states, RuleState{RuleInfo: info})
	}
	return states
}

// with returns the plan of a scope's path and of a member of its pool; p itself if m is nil.
func (p *plan) with(m *wire.Member) *plan {
	if m == nil || p.Member != nil {
		return p
	}
	own := *p
	own.Scope = p.With(m)
	own.states = append(slices.Clip(p.states), statesOf(p.Scope, m.Rules)...)
	return &own
}

// rulesWith returns how many rules an answer has, with those of a member of the pool.
func (p *plan) rulesWith(member string) int {
	m := p.Pool.Member(member)
	if m == nil || p.Member != nil {
		return len(p.Rules)
	}
	return len(p.Rules) + len(m.Rules)
}

// free reports whether nothing limits the scope.
func (p *plan) free() bool { return len(p.All) == len(p.Shadows) && p.Pool == nil }

// fresh returns the plan for a time of the server's clock, after a reply that an earlier one is out of date.
func (p *plan) fresh(now int64) (*plan, error) {
	if p.alone != nil {
		return p.alone.plan(time.UnixMicro(now)), nil
	}
	s, err := p.limiter.scopes.At(p.Scope.Scope, time.UnixMicro(now))
	if err != nil {
		return nil, err
	}
	fresh := s.Attached.(*plan) //nolint:forcetypeassert // see newPlan
	return fresh.with(fresh.Pool.Member(p.memberKey())), nil
}

// memberKey returns the key of the member whose rules the plan has, "" for none.
func (p *plan) memberKey() string {
	if p.Member == nil {
		return ""
	}
	return p.Member.Key
}

// attemptID is the id under which Redis knows an attempt: the same id in another scope is another attempt.
func (p *plan) attemptID(id string) string { return wire.Escape(id) + p.mark }

// scopeMark ends the attempt ids of a scope: 72 bits of its hash, so that a record is short however long the scope.
func scopeMark(s policy.Scope) string {
	sum := sha256.Sum256([]byte(s.String()))
	return "~" + base64.RawURLEncoding.EncodeToString(sum[:9])
}

// leases returns the shortest and the longest lease of the concurrency rules, and false if there are none.
func (p *plan) leases() (shortest, longest time.Duration, some bool) {
	for _, b := range p.Rules {
		if b.Rule.Algorithm == policy.Concurrency {
			if lease := b.Rule.Lease; !some || lease < shortest {
				shortest = lease
			}
			longest, some = max(longest, b.Rule.Lease), true
		}
	}
	return shortest, longest, some
}

// patience returns how much longer the rules' max_wait lets a request wait.
func (p *plan) patience(waited time.Duration) time.Duration {
	left := Never
	for _, b := range p.Rules {
		if b.Rule.MaxWait > 0 {
			left = min(left, max(0, b.Rule.MaxWait-waited))
		}
	}
	return left
}

// price is the cost of a request: the same under each rule, or by unit.
type price struct {
	each  int64
	costs policy.Costs
}

// under is what it takes under a rule. A pause counts each request; a request that takes nothing takes no place either.
func (c price) under(r policy.Rule) int64 {
	switch {
	case r.Name == policy.PausedRule:
		return defaultCost
	case len(c.costs) == 0:
		return c.each
	case c.costs.Zero():
		return 0
	}
	return c.costs.Under(r)
}

// text is the costs by unit as scripts read them, "" for none.
func (c price) text() string {
	if c.costs.Zero() {
		return ""
	}
	text := ""
	for _, unit := range slices.Sorted(maps.Keys(c.costs)) {
		text += unit + "=" + strconv.FormatInt(c.costs[unit], 10) + ","
	}
	return text
}

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

const defaultCost = 1
