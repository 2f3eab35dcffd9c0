package throttle

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Grant is what an allowed decision took. It can be stored, copied, and refunded once. The zero Grant
// took nothing.
type Grant struct {
	scope  string
	id     string         // as Redis knows it; see plan.attemptID
	plan   *compiledScope // under which it was granted; nil for one that took nothing
	kept   string         // the key under which SaveGrant has it
	record string         // the key of its record, where that is not its id's
	cost   price
	told   *settled      // what was settled of it; nil for one that can't be
	shadow *shadow       // what shadow rules took beside it, if there are any
	spent  *spentGrant   // what Config.OnSpent knows of it
	places []int64       // where each rule put its units
	start  int64         // by the server's clock, µs
	lasts  time.Duration // see plan.settles; 0 for the plan's
	from   time.Time     // when the leases began to run, at the latest
	came   time.Time     // when start has come on this process's clock, or a moment later; zero where it isn't known
	probe  bool          // it goes first after a guessed pause
	local  bool          // taken from this process's share during an outage
}

// NewGrant returns a grant that took nothing, for test doubles of a Limiter. To refund or lease it
// does nothing.
func NewGrant(scope, id string) Grant { return Grant{scope: scope, id: id, local: true} }

// ID returns the attempt id under which it was granted.
func (g Grant) ID() string {
	if g.plan == nil {
		return g.id
	}
	return strings.TrimSuffix(g.id, g.plan.mark)
}

// Zero reports whether the grant took nothing.
func (g Grant) Zero() bool { return g.id == "" }

// Refund gives a grant back: a run that did not happen spends nothing. Window rules get exactly the
// grant's units back, at the grant's time. A token bucket gets at most what it would hold if the units
// had not been taken, which may be less. Places of concurrency rules are freed. What comes back can be
// spent at once. A rule that is gone, or whose algorithm has changed meanwhile, gets no units back.
//
// A second Refund within a minute does nothing. The error wraps ErrUnavailable if Redis could not be
// reached; the units then stay spent, which is safe. It runs even if ctx has ended: it has its own
// time-out. Costs one round trip, two for a grant from LoadGrant.
func (l *Limiter) Refund(ctx context.Context, g Grant) error {
	err := l.giveBack(ctx, g, true)
	if err == nil {
		g.spent.refund()
	}
	return err
}

// giveBack tells of what has come free, or not where its caller takes it again.
func (l *Limiter) giveBack(ctx context.Context, g Grant, tells bool) error {
	g.shadow.giveBack()
	if g.Zero() {
		return nil
	}
	p := g.plan
	if g.local {
		l.outage.giveBack(p, g)
		return nil
	}
	rules, places := l.rulesNow(p, g.places)
	started := l.started(g, rules)
	places = g.told.nowhere(p.keys, places)
	p, rules, places, g.cost = l.withOthers(p, rules, places, g.cost)
	mark := p.attempt(g.id)
	record := cmp.Or(g.record, mark)
	c := newCall(lua.Settle.For(p.kinds), p.keyArgs, 5, 6+5*len(rules), settleHead+settleRule*len(rules)+settleTail)
	c.args = append(c.args, mark, record, p.settled(g.id), p.queue[1], p.queue[3], l.clock(), g.id, "", int64(maxParts), 0, g.since())
	for i := range rules {
		c.args = append(c.args, rules[i], g.cost.at(i), places[i], 0, started(i, places[i]))
	}
	ctx = context.WithoutCancel(ctx)
	reply, err := l.runner.run(ctx, c)
	if err != nil {
		return unavailable(ctx, "give back to", g.scope, err)
	}
	if tells {
		l.heedFreed(p.scope.Provider(), reply)
	}
	if err := l.returnProbe(ctx, g); err != nil {
		return err
	}
	if g.kept != "" {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
		if err := l.rdb.Del(ctx, g.kept).Err(); err != nil {
			return unavailable(ctx, "let go a grant of", g.scope, err)
		}
	}
	return nil
}

// started returns, by rule, when a grant was charged for if its units are where they were put, and the rule is still as it was
// then; else 0. Rules are those of rulesNow.
func (l *Limiter) started(g Grant, rules []any) func(rule int, place int64) int64 {
	unchanged := g.kept == "" && len(l.scopes.since(g.plan.made)) == 0
	return func(i int, place int64) int64 {
		if unchanged && place > 0 && i < len(g.plan.rules) && rules[i] == g.plan.rules[i] {
			return g.start
		}
		return 0
	}
}

// stepSeen is by how much the server's clock must have gone back against this process's for that to be a step:
// scripts move what is in a state by no less than a second.
const stepSeen = 900 * time.Millisecond

// since is what the server's clock shows by now at least, in µs, unless it has stepped back since the grant; 0
// where nobody knows.
func (g Grant) since() int64 {
	if g.came.IsZero() {
		return 0
	}
	return g.start + (time.Since(g.came) - stepSeen).Microseconds()
}

// withOthers adds the rules of a scope that a grant took nothing of, those that were not
// there then too: it may have been settled with units of theirs.
func (l *Limiter) withOthers(p *compiledScope, rules []any, places []int64, cost price) (*compiledScope, []any, []int64, price) {
	all, err := l.scopes.of(p.scope.String())
	if err != nil || all == p || !slices.ContainsFunc(all.keys, func(key string) bool { return !slices.Contains(p.keys, key) }) {
		return p, rules, places, cost
	}
	both := &compiledScope{scope: p.scope, provider: p.provider, keys: slices.Clone(p.keys), keyArgs: slices.Clone(p.keyArgs), params: slices.Clone(p.params), queue: p.queue}
	rules, places = slices.Clone(rules), slices.Clone(places)
	by := make([]int64, len(p.keys))
	for i := range by {
		by[i] = cost.at(i)
	}
	for i, key := range all.keys {
		if !slices.Contains(p.keys, key) {
			both.keys, both.keyArgs, both.params = append(both.keys, key), append(both.keyArgs, key), append(both.params, all.params[i])
			rules, places, by = append(rules, all.rules[i]), append(places, 0), append(by, 0)
		}
	}
	present := map[byte]bool{}
	for _, one := range both.params {
		present[one.kind] = true
	}
	both.kinds = kindsOf(present)
	return both, rules, places, price{by: by}
}

// rulesNow returns the rules of a plan as scripts read them, each as it is by now, and where
// its units stand. Under one whose algorithm or unit was another one meanwhile they stand
// nowhere: they were taken over, and may be anybody's. To a longer window, units that a shorter one
// has let go are still spent, and whoever writes its state under the old rule would forget
// them.
func (l *Limiter) rulesNow(p *compiledScope, places []int64) ([]any, []int64) {
	later := l.scopes.since(p.made)
	now, err := l.scopes.of(p.scope.String())
	if len(later) == 0 && (err != nil || now == p) {
		return p.rules, places
	}
	rules, places := slices.Clone(p.rules), slices.Clone(places)
	for i, b := range p.bounds {
		if !alwaysCounted(later, p.scope, b) {
			places[i] = 0
		}
		if err != nil {
			continue
		}
		if j := slices.Index(now.keys, p.keys[i]); j >= 0 && now.params[j].kind == p.params[i].kind {
			rules[i] = now.rules[j]
		}
	}
	return rules, places
}

// alwaysCounted says that a rule had its algorithm, its unit and its fixed windows under all of some policies.
func alwaysCounted(policies []*policy.Policy, scope policy.Scope, b policy.MatchedRule) bool {
	for _, pol := range policies {
		bounds, _ := pol.Match(scope) // no rule is no rule that counts
		if !slices.ContainsFunc(bounds, func(other policy.MatchedRule) bool {
			return other.Scope == b.Scope && other.Rule.Name == b.Rule.Name && other.Rule.Algorithm == b.Rule.Algorithm && other.Rule.Unit == b.Rule.Unit &&
				(b.Rule.Algorithm != policy.FixedWindow || other.Rule.Per == b.Rule.Per && other.Rule.OpensOnUse == b.Rule.OpensOnUse)
		}) {
			return false
		}
	}
	return true
}
