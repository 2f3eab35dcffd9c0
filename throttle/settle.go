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

// Settlement is what became of the difference between what a grant was charged and what
// was spent.
type Settlement struct {
	// Rules has one entry for each rule that was settled, outermost first.
	Rules []SettledRule
}

// SettledRule is one rule of a Settlement. All numbers are in its own unit.
type SettledRule struct {
	// Scope is the level at which the rule counts, Rule its name there.
	Scope, Rule string
	// Unit is what the rule counts.
	Unit string
	// Spent is what is recorded from now on, as it was given.
	Spent int64
	// Back is how much came back now, and Debt how much was charged now besides.
	Back, Debt int64
	// Over is how much of Spent is charged to nobody, since the rule would hold more
	// than twice its capacity with it: by so much the API's own limit may be exceeded.
	Over int64
}

// Over tells whether anything was spent that is charged to nobody.
func (s Settlement) Over() bool {
	return slices.ContainsFunc(s.Rules, func(r SettledRule) bool { return r.Over > 0 })
}

// Settle makes what a grant was charged what it has spent: costs, of the units that they
// name; all others stay as they are. What was spent less comes back as by Refund, and
// can be spent at once. What was spent more is charged now, as a debt, even where it does
// not fit: nobody starts until it is paid. No rule ever holds more than twice its capacity;
// what is above that is not charged, and told. Concurrency rules are left alone.
//
// It can be called again, as more is known, however much later: what counts is what was settled
// last by this process, or, of a grant that is kept, by any. Units of
// a grant come back for as long as a rule holds them, a day at most. Of rules that have
// another algorithm or unit by now none come back. Refund of a grant that was settled
// gives back what was recorded; settling one that was given back does nothing, for a minute.
//
// The error says which of costs is wrong, or wraps ErrUnavailable when Redis could not be
// told; then what was charged stays charged. A context that has ended does not stop it.
// Costs one round trip, none where no rule counts any of costs or the grant was not made by
// Redis. Source: docs/algorithms.md#settling
func (l *Limiter) Settle(ctx context.Context, g Grant, costs policy.Costs) (Settlement, error) {
	s, err := l.settle(ctx, g, costs)
	if err == nil {
		g.spent.settled(costs)
	}
	return s, err
}

func (l *Limiter) settle(ctx context.Context, g Grant, costs policy.Costs) (Settlement, error) {
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
		s := l.settling(p, g, costs)
		if len(s.rules) == 0 {
			return Settlement{}, nil
		}
		reply, err := l.runner.run(ctx, s.call(l, g, call))
		if err != nil {
			return Settlement{}, unavailable(ctx, "settle with", g.scope, err)
		}
		l.heedFreed(p.scope.Provider(), reply)
		if reply[0] >= 0 {
			return s.settlement(g, reply), nil
		}
		l.scopes.renew(time.UnixMicro(reply[1]), g.scope)
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

func (l *Limiter) settling(p *compiledScope, g Grant, costs policy.Costs) settling {
	s, held := settling{plan: p}, l.held(g)
	for i, b := range p.bounds {
		spent, named := costs[b.Rule.Unit]
		if b.Rule.Algorithm == policy.Concurrency || everybodys(b.Rule) || !named {
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

// String tells of rules at which something came back, was charged or is over, for logs:
// "tokens of llm: 1830 spent, 330 charged".
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
