package throttle

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/answers"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Settlement is the result of Settle: what came back and what was charged, by rule.
type Settlement struct {
	// Rules has one entry for each settled rule, outermost first.
	Rules []SettledRule
}

// SettledRule is one rule of a Settlement. All numbers are in the rule's own unit.
type SettledRule struct {
	Scope, Rule string // the level at which the rule counts, and its name there
	Unit        string // what the rule counts
	Spent       int64  // what counts from now on, as given to Settle
	Back, Debt  int64  // what came back now, and what was charged now in addition
	// Over is the part of Spent that is not charged, since the rule would hold more than twice its capacity with it. The API's
	// own limit may be exceeded by this amount.
	Over int64
}

// Over reports whether any spent units could not be charged.
func (s Settlement) Over() bool {
	return slices.ContainsFunc(s.Rules, func(r SettledRule) bool { return r.Over > 0 })
}

// Settle corrects the charge of a grant to what was spent: costs, for the units that it names; other units stay as they are.
// Units that were not spent come back as by Refund, and can be spent at once. Units that were spent beyond the charge are charged
// now, as a debt, even if they do not fit: nothing starts until the debt is paid. No rule ever holds more than twice its
// capacity; units beyond that are not charged, and the Settlement has them as Over. Concurrency rules do not change.
//
// It may be called again as more becomes known, however much later: the last settlement counts. Units can come back as long as a
// rule holds them, a day at most. No units come back of a rule that has another algorithm or unit by now. Refund of a settled
// grant gives back what was settled. Settle of a refunded grant does nothing, for a minute.
//
// The error says which of costs is invalid, or wraps ErrUnavailable if Redis could not be reached; the charge then stays. It runs
// even if ctx has ended. Costs one round trip, none if no rule counts any of costs or the grant was not made by Redis.
// Source: docs/algorithms.md#settling
func (l *Limiter) Settle(ctx context.Context, g Grant, costs policy.Costs) (Settlement, error) {
	s, err := l.settle(ctx, g, costs, everyRate)
	if err == nil {
		g.spent.settled(costs)
	}
	return s, err
}

// SettleRefused takes a call that its API refused out of calendars and of windows longer than an hour: its units come back there,
// as by Settle, since the API's own day does not count the call. Token buckets and shorter windows keep the charge: they pace the
// calls that arrive, and a refused call has arrived. It does nothing if policy.Refusals says that refused calls count. Call it
// for a grant that was one call alone. Errors and cost are those of Settle. Source: docs/vendor.md#refused-calls
func (l *Limiter) SettleRefused(ctx context.Context, g Grant) (Settlement, error) {
	p, err := l.planOf(g)
	if g.Zero() || err != nil {
		return Settlement{}, nil //nolint:nilerr // a scope that no rule counts any more
	}
	if pol := l.Policy(); pol.Answers(p.Scope.Scope) == policy.AnswersIgnore || pol.Refusals(p.Scope.Scope).Count {
		return Settlement{}, nil
	}
	none := policy.Costs{}
	for _, b := range p.Rules {
		none[b.Rule.Unit] = 0
	}
	return l.settle(ctx, g, none, isQuota)
}

func everyRate(policy.Rule) bool { return true }

// isQuota reports whether a rule counts calls rather than paces them.
func isQuota(r policy.Rule) bool {
	return r.Algorithm == policy.Calendar ||
		(r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow) && r.Per > answers.MostWindow
}

func (l *Limiter) settle(ctx context.Context, g Grant, costs policy.Costs, settles func(policy.Rule) bool) (Settlement, error) {
	if err := costs.CheckUnits(); err != nil {
		return Settlement{}, err
	}
	if g.Zero() || g.local {
		return Settlement{}, nil
	}
	spent := func(r policy.Rule) (int64, bool) {
		units, named := costs[r.Unit]
		return units, named && r.Algorithm != policy.Concurrency && r.Name != policy.PausedRule && settles(r)
	}
	if p, err := l.planOf(g); err != nil || !slices.ContainsFunc(p.Rules, func(b policy.MatchedRule) bool { _, is := spent(b.Rule); return is }) {
		return Settlement{}, nil //nolint:nilerr // a scope that no rule counts any more
	}
	ctx = context.WithoutCancel(ctx)
	p, rules, err := l.report(ctx, g, "spent", g.remembered().Microseconds(), spent, true)
	if err != nil {
		return Settlement{}, wire.Unavailable(ctx, "settle with", g.scope, err)
	}
	var out Settlement
	var over []RuleState
	for i, r := range rules {
		units, is := spent(p.Rules[i].Rule)
		if !is {
			continue
		}
		state := p.states[i]
		out.Rules = append(out.Rules, SettledRule{Scope: state.Scope, Rule: state.Rule, Unit: state.Unit, Spent: units, Back: r.Back, Debt: r.Debt, Over: r.Over})
		g.known.note(p.Rules[i], wire.Charged{Units: units - r.Over, Over: r.Over})
		if r.Debt > 0 {
			over = append(over, state)
		}
	}
	if len(over) > 0 && l.cfg.Observer != nil {
		l.cfg.Observer.Overspent(over)
	}
	return out, nil
}

// longestSettling is how long after its start a grant's units can come back.
const longestSettling = 24 * time.Hour

// remembered is how long Redis keeps what was settled of a grant: longer than any of it can come back, and than the grant is
// stored.
func (g Grant) remembered() time.Duration {
	longest := time.Minute
	for _, b := range g.plan.Rules {
		switch b.Rule.Algorithm {
		case policy.Concurrency:
		case policy.TokenBucket:
			fill := float64(b.Rule.Per) / float64(max(b.Rule.Limit, 1)) * float64(b.Rule.Capacity())
			longest = max(longest, time.Duration(min(2*fill, float64(longestSettling))))
		case policy.Calendar:
			longest = longestSettling
		case policy.SlidingWindow, policy.FixedWindow:
			longest = max(longest, b.Rule.Per+b.Rule.Margin)
		}
	}
	return min(longest, longestSettling) + 2*MaxDelayLimit + g.known.left()
}

// known is what this process knows of a grant's settlements, since Redis drops its record some minutes after the last one. Copies
// of a grant share it. It is safe for concurrent use; nil knows nothing.
type known struct {
	mu    sync.Mutex
	rules map[string]wire.Charged // by the rule's name
	kept  time.Time               // until then Redis keeps the grant
}

func (k *known) locked(do func()) {
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		do()
	}
}

func (k *known) note(b policy.MatchedRule, c wire.Charged) {
	k.locked(func() {
		if k.rules == nil {
			k.rules = map[string]wire.Charged{}
		}
		k.rules[wire.RuleName(b)] = c
	})
}

// any reports whether anything was settled.
func (k *known) any() (some bool) {
	k.locked(func() { some = len(k.rules) > 0 })
	return some
}

// of returns what was settled under a rule.
func (k *known) of(b policy.MatchedRule) (c wire.Charged, settled bool) {
	k.locked(func() { c, settled = k.rules[wire.RuleName(b)] })
	return c, settled
}

// keep notes until when the grant is kept, at least.
func (k *known) keep(until time.Time) {
	k.locked(func() {
		if until.After(k.kept) {
			k.kept = until
		}
	})
}

// left returns for how long the grant will be kept yet.
func (k *known) left() (left time.Duration) {
	k.locked(func() { left = max(0, time.Until(k.kept)) })
	return left
}

// charged is what the grant is charged under the rules of a plan: what was settled, or else what it was granted; and what it has
// spent, if that is asked for.
func (g Grant) charged(p *plan, spent func(policy.Rule) (int64, bool)) []wire.Charged {
	list := make([]wire.Charged, len(p.Rules))
	for i, b := range p.Rules {
		c, settled := g.known.of(b)
		if !settled && slices.ContainsFunc(g.plan.Rules, func(o policy.MatchedRule) bool { return countsAs(b, o) }) {
			c = wire.Charged{Units: g.price.under(b.Rule)}
		}
		if c.Spent = wire.Never; spent != nil {
			if units, is := spent(b.Rule); is {
				c.Spent = units
			}
		}
		list[i] = c
	}
	return list
}

// String describes the rules with units that came back, were charged or are over, for logs: "tokens of llm: 1830 spent, 330
// charged".
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
		}{{r.Back, "came back"}, {r.Debt, "charged"}, {r.Over, "not charged"}} {
			if part.n > 0 {
				text += ", " + strconv.FormatInt(part.n, 10) + " " + part.what
			}
		}
	}
	return text
}
