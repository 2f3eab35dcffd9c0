package throttle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Settlement is the result of Settle: what came back and what was charged, by rule.
type Settlement struct {
	// Rules has one entry for each settled rule, outermost first.
	Rules []SettledRule
}

// SettledRule is one rule of a Settlement. All numbers are in the rule's own unit.
type SettledRule struct {
	// Scope is the level at which the rule counts, Rule its name there.
	Scope, Rule string
	// Unit is what the rule counts.
	Unit string
	// Spent is the amount that counts from now on, as given to Settle.
	Spent int64
	// Back is the amount that came back now, and Debt the amount that was charged now in addition.
	Back, Debt int64
	// Over is the part of Spent that is not charged, since the rule would hold more than twice its
	// capacity with it. The API's own limit may be exceeded by this amount.
	Over int64
}

// Over reports whether any spent units could not be charged.
func (s Settlement) Over() bool {
	return slices.ContainsFunc(s.Rules, func(r SettledRule) bool { return r.Over > 0 })
}

// Settle corrects the charge of a grant to what was spent: costs, for the units that it names; other
// units stay as they are. Units that were not spent come back as by Refund, and can be spent at once.
// Units that were spent beyond the charge are charged now, as a debt, even if they do not fit: nothing
// starts until the debt is paid. No rule ever holds more than twice its capacity; units beyond that
// are not charged, and the Settlement has them as Over. Concurrency rules do not change.
//
// It may be called again as more becomes known, however much later. The last settlement by this
// process counts, or for a stored grant, the last by any process. Units of a grant can come back as
// long as a rule holds them, a day at most. No units of a rule that has another algorithm or unit by
// now come back. Refund of a settled grant gives back what was settled. Settle of a refunded grant
// does nothing, for a minute.
//
// The error says which of costs is invalid, or wraps ErrUnavailable if Redis could not be reached; the
// charge then stays. It runs even if ctx has ended. Costs one round trip, none if no rule counts any
// of costs or the grant was not made by Redis.
// Source: docs/algorithms.md#settling
func (l *Limiter) Settle(ctx context.Context, g Grant, costs policy.Costs) (Settlement, error) {
	s, err := l.settle(ctx, g, costs, everyRate)
	if err == nil {
		g.spent.settled(costs)
	}
	return s, err
}

// SettleRefused takes a call that its API refused out of calendars and of windows longer than an hour: its units
// come back there, as by Settle, since the API's own day does not count the call. Token buckets and shorter windows
// keep the charge: they pace the calls that arrive, and a refused call has arrived. It does nothing if
// policy.Refusals says that refused calls count. Call it for a grant that was one call alone. Errors and cost are those of
// Settle.
// Source: docs/vendor.md#refused-calls
func (l *Limiter) SettleRefused(ctx context.Context, g Grant) (Settlement, error) {
	p, err := l.scopes.of(g.scope)
	if g.Zero() || err != nil || p.answers == policy.AnswersIgnore || p.refusals.Count {
		return Settlement{}, nil //nolint:nilerr // a scope that no rule counts any more
	}
	none := policy.Costs{}
	for _, b := range p.bounds {
		none[b.Rule.Unit] = 0
	}
	return l.settle(ctx, g, none, isQuota)
}

// everyRate is every rule that can be settled, and isQuota those that count rather than pace.
func everyRate(policy.Rule) bool { return true }

func isQuota(r policy.Rule) bool {
	return r.Algorithm == policy.Calendar ||
		(r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow) && r.Per > mostWindow
}

func (l *Limiter) settle(ctx context.Context, g Grant, costs policy.Costs, settles func(policy.Rule) bool) (Settlement, error) {
	if err := costs.CheckUnits(); err != nil {
		return Settlement{}, err
	}
	if g.Zero() || g.local {
		return Settlement{}, nil
	}
	ctx = context.WithoutCancel(ctx)
	call := NewID()
	for range settleTries {
		p, err := l.scopes.of(g.scope)
		if err != nil {
			return Settlement{}, nil //nolint:nilerr // a scope that no rule counts any more
		}
		s := l.settling(p, g, costs, settles)
		if len(s.rules) == 0 {
			return Settlement{}, nil
		}
		asked := time.Now()
		reply, err := l.runner.run(ctx, s.call(l, g, call))
		if err != nil {
			return Settlement{}, unavailable(ctx, "settle with", g.scope, err)
		}
		l.heedFreed(p.scope.Provider(), reply)
		if reply[0] >= 0 {
			return s.settlement(g, reply), nil
		}
		l.told(p.provider, asked, time.UnixMicro(reply[1]), []string{g.scope})
	}
	return Settlement{}, fmt.Errorf("%w: settle with %q: calendars change while they are asked", ErrUnavailable, g.scope)
}

const (
	// settleTries is how often it is asked again with calendars of another time.
	settleTries = 3
	// settleHead is how many numbers a reply begins with, settleRule how many each
	// rule has, and settleTail how many come last.
	settleHead = 2
	settleRule = 3
	settleTail = 1
	// longestSettling is for how long after its start a grant's units come back.
	longestSettling = 24 * time.Hour
)

// settling is the rules that a settlement is about.
type settling struct {
	plan  *compiledScope
	rules []int  // of the plan
	held  []held // what the grant is charged under each
	spent []int64
}

func (l *Limiter) settling(p *compiledScope, g Grant, costs policy.Costs, settles func(policy.Rule) bool) settling {
	s, held := settling{plan: p}, l.held(g)
	for i, b := range p.bounds {
		spent, named := costs[b.Rule.Unit]
		if b.Rule.Algorithm == policy.Concurrency || everybodys(b.Rule) || !named || !settles(b.Rule) {
			continue
		}
		s.rules, s.spent, s.held = append(s.rules, i), append(s.spent, spent), append(s.held, held[p.keys[i]])
	}
	return s
}

// call is the script call; see lua/settle.lua.
func (s settling) call(l *Limiter, g Grant, id string) call {
	keys, present := make([]any, 0, len(s.rules)), map[byte]bool{}
	for _, i := range s.rules {
		keys = append(keys, s.plan.keyArgs[i])
		present[s.plan.params[i].kind] = true
	}
	until := g.start + g.holds(s.plan).Microseconds()
	c := newCall(lua.Settle.For(kindsOf(present)), keys, 5, 6+5*len(s.rules), settleHead+settleRule*len(s.rules)+settleTail)
	mark := s.plan.attempt(g.id)
	c.args = append(c.args, mark, mark, s.plan.settled(g.id), s.plan.queue[1], s.plan.queue[3],
		l.clock(), g.id, id, until, g.remembered(s.plan).Milliseconds(), g.since())
	for k, i := range s.rules {
		c.args = append(c.args, s.plan.rules[i], s.held[k].units, s.held[k].place, s.held[k].over, s.spent[k])
	}
	return c
}

// settlement reads the reply, and has the grant know it.
func (s settling) settlement(g Grant, reply []int64) Settlement {
	if reply[0] == 0 {
		return Settlement{} // it has been given back
	}
	out := Settlement{Rules: make([]SettledRule, len(s.rules))}
	for k, i := range s.rules {
		state, spent, r := s.plan.states[i], s.spent[k], reply[settleHead+settleRule*k:]
		out.Rules[k] = SettledRule{Scope: state.Scope, Rule: state.Rule, Unit: state.Unit, Spent: spent, Back: r[0], Debt: r[1], Over: r[2]}
		g.told.note(s.plan.keys[i], held{algorithm: s.plan.bounds[i].Rule.Algorithm, unit: state.Unit, units: spent - r[2], over: r[2]})
	}
	return out
}

// settles is for how long after its start units of a grant may come back: as long as a
// rule holds them, but for a bucket that is never empty, and a day at most.
func (p *compiledScope) settles() time.Duration {
	longest := time.Minute
	for _, b := range p.bounds {
		switch b.Rule.Algorithm {
		case policy.Concurrency:
		case policy.TokenBucket:
			fill := float64(b.Rule.Per) / float64(max(b.Rule.Limit, 1)) * float64(b.Rule.Capacity())
			longest = max(longest, time.Duration(min(2*fill, float64(longestSettling))))
		case policy.Calendar:
			longest = longestSettling
		case policy.SlidingWindow, policy.FixedWindow:
			longest = max(longest, b.Rule.Per+widened(b.Rule))
		}
	}
	return min(longest, longestSettling)
}

// settled returns the key of what was settled of an attempt. No id is written with an '='.
func (p *compiledScope) settled(id string) string { return p.attempt(id) + "=" }

// String describes the rules with units that came back, were charged or are over, for logs: "tokens of
// llm: 1830 spent, 330 charged".
func (s Settlement) String() string {
	text := ""
	for _, r := range s.Rules {
		if text != "" {
			text += "; "
		}
		text += r.Rule + " of " + r.Scope + ": " + strconv.FormatInt(r.Spent, 10) + " spent"
		for _, part := range []struct {
			n    int64
			what string
		}{{r.Back, "came back"}, {r.Debt, "charged"}, {r.Over, "charged to nobody"}} {
			if part.n > 0 {
				text += ", " + strconv.FormatInt(part.n, 10) + " " + part.what
			}
		}
	}
	return text
}
