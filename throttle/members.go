package throttle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Member is the state of a member of a pool: what a task meets there beside the rules of its own path.
type Member struct {
	// Name is the member's alias, and Scope the scope that has its limits: github/@alice.
	Name, Scope string
	// At is the Redis server's time.
	At time.Time
	// Rules are those of the member's own levels that apply now, outermost first, its pauses by the policy among them. RunTimes of
	// those under concurrency rules are not read.
	Rules []RuleForecast
	// Upstream is what its API has answered about the member's own levels.
	Upstream UpstreamState
}

// Held returns until when nothing but probes starts with the member, by its pauses and breakers alone, and what holds it: the longest
// of them. until is zero if no clock ends it. by is empty if nothing holds it. It does no I/O.
func (m Member) Held() (until time.Time, by Hold) {
	for _, r := range m.Rules {
		switch {
		case r.Paused && r.RetryAfter == Never:
			return time.Time{}, HoldPause
		case r.Paused && m.At.Add(r.RetryAfter).After(until):
			until, by = m.At.Add(r.RetryAfter), HoldPause
		}
	}
	for _, p := range m.Upstream.Pauses {
		if p.Until.After(until) {
			until, by = p.Until, HoldUpstream
		}
	}
	for _, b := range m.Upstream.Breakers {
		if b.Next.After(until) {
			until, by = b.Next, HoldBreaker
		}
	}
	return until, by
}

// Hold is what holds a member whatever its limits are.
type Hold string

// The holds.
const (
	HoldPause    Hold = "paused"   // a pause by the policy
	HoldUpstream Hold = "upstream" // its API asked not to be called
	HoldBreaker  Hold = "breaker"  // its breaker is open
)

// peekedAtOnce is how many members one script call looks at: each costs it some 10 µs.
const peekedAtOnce = 50

// Members returns the members of the pool on a scope's path, in the order of the policy; none without a pool. It changes nothing. It
// costs two commands, and one more for each further 50 members. Its errors are those of Peek.
func (l *Limiter) Members(ctx context.Context, scope string) ([]Member, error) {
	p, err := l.plan(scope)
	if err != nil || p.Pool == nil {
		return nil, err
	}
	level := p.Pool.Level
	members := make([]Member, len(p.Pool.Members))
	var ruled []*Member // those that have rules
	var plans []*plan
	var scopes []*wire.Scope
	for i, m := range p.Pool.Members {
		members[i] = Member{Name: m.Name, Scope: policy.MemberScope(level, m.Name).String(), At: l.serverTime(p.Prefix)}
		if one, err := l.plan(members[i].Scope); err == nil {
			ruled, plans, scopes = append(ruled, &members[i]), append(plans, one), append(scopes, one.Scope)
		} else if !errors.As(err, new(*policy.UnmatchedError)) {
			return nil, err
		}
	}
	states, err := l.peekEach(ctx, plans)
	if err != nil {
		return nil, err
	}
	upstream, err := l.reports.States(ctx, scopes)
	if err != nil {
		return nil, err
	}
	for i, m := range ruled {
		m.Upstream = ownState(level, upstream[i])
		if d := &states[i]; len(d.Rules) > 0 {
			m.At = d.At
			m.Rules = slices.DeleteFunc(l.forecasts(plans[i], d), func(r RuleForecast) bool { return !belowLevel(level, r.Scope) })
		}
	}
	return members, nil
}

func belowLevel(level policy.Scope, scope string) bool {
	return strings.HasPrefix(scope, level.String()+"/")
}

// ownState leaves out what holds at a level and above it.
func ownState(level policy.Scope, s UpstreamState) UpstreamState {
	s.Pauses = slices.DeleteFunc(s.Pauses, func(p UpstreamPause) bool { return !belowLevel(level, p.Scope) })
	s.Breakers = slices.DeleteFunc(s.Breakers, func(b UpstreamBreaker) bool { return !belowLevel(level, b.Scope) })
	s.Corrections = slices.DeleteFunc(s.Corrections, func(c Correction) bool { return !belowLevel(level, c.Bound.Scope.String()) })
	return s
}

// peekEach peeks at one unit of each of some scopes of one provider. It sets plans to those that answered.
func (l *Limiter) peekEach(ctx context.Context, plans []*plan) ([]Decision, error) {
	out := make([]Decision, len(plans))
	var all []int
	for i, p := range plans {
		if !p.free() {
			all = append(all, i)
		}
	}
	for some := range slices.Chunk(all, peekedAtOnce) {
		if err := l.peekSome(ctx, plans, some, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// peekSome peeks at some of the plans in one call, and again at those of which the rules of another time apply.
func (l *Limiter) peekSome(ctx context.Context, plans []*plan, some []int, out []Decision) error {
	asks := make([]*ask, len(some))
	for k, i := range some {
		asks[k] = plans[i].ask(&Request{Cost: defaultCost})
		asks[k].Peek, asks[k].sent = true, time.Now()
	}
	l.sender.send(ctx, l.sender.newCall(asks))
	for k, i := range some {
		a, p, err := asks[k], plans[i], error(nil)
		if a.err != nil {
			return wire.Unavailable(ctx, "peek at", p.Scope.Scope.String(), a.err)
		}
		p.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
		if a.answer.Status != wire.Outdated {
			p.read(a, &out[i])
		} else if out[i], plans[i], err = l.peek(ctx, p, &Request{Scope: p.Scope.Scope.String(), Cost: defaultCost}); err != nil && !errors.As(err, new(*policy.UnmatchedError)) {
			return err
		}
	}
	return nil
}
