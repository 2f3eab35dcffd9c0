package throttle

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/lua"
)

// Grant is what an allowed decision took: a value that can be kept, copied and
// given back once. The zero Grant took nothing.
type Grant struct {
	scope  string
	id     string
	plan   *plan  // under which it was granted; nil for one that took nothing
	record string // the key of its record, where that is not its id's
	cost   int64
	places []int64   // where each rule put its units
	from   time.Time // when the leases began to run, at the latest
	shadow *shadow   // what shadow rules took beside it, if there are any
	local  bool      // taken from this process's share during an outage
}

// NewGrant returns a grant that took nothing, for what stands in for a Limiter in
// tests: giving it back or holding it does nothing.
func NewGrant(scope, id string) Grant { return Grant{scope: scope, id: id, local: true} }

// ID returns the attempt id under which it was granted.
func (g Grant) ID() string { return g.id }

// Zero reports whether the grant took nothing.
func (g Grant) Zero() bool { return g.id == "" }

// GiveBack takes a grant back: a run that did not happen spends nothing. Window
// rules give back exactly, in the place of the grant; a token bucket never holds
// more than it would had the units not been taken, and so may give back less;
// places of concurrency rules are freed. What comes back can be spent at once. Under a rule
// whose algorithm was changed meanwhile, or that is gone, no units come back.
//
// Giving back twice does nothing the second time, for a minute. The error wraps
// ErrUnavailable when Redis could not be told; then the units stay spent, which
// is safe. A context that has ended does not stop it: it has its own time-out.
// Costs one round trip.
func (l *Limiter) GiveBack(ctx context.Context, g Grant) error {
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
	mark := p.attempt(g.id)
	record := cmp.Or(g.record, mark)
	c := newCall(lua.GiveBack.For(p.kinds), p.keyArgs, 3, 2+3*len(p.rules), 1+len(p.bounds))
	c.args = append(c.args, mark, record, p.turns[1], l.clock(), g.id)
	for i := range rules {
		c.args = append(c.args, rules[i], g.cost, places[i])
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := l.runner.run(ctx, c); err != nil {
		return unavailable(ctx, "give back to", g.scope, err)
	}
	return nil
}

// rulesNow returns the rules of a plan as scripts read them, each as it is by now, and where
// its units stand. Under one whose algorithm was another one meanwhile they stand nowhere:
// they were taken over, and may be anybody's. To a longer window, units that a shorter one
// has let go are still spent, and whoever writes its state under the old rule would forget
// them.
func (l *Limiter) rulesNow(p *plan, places []int64) ([]any, []int64) {
	later := l.plans.since(p.made)
	now, err := l.plans.of(p.scope.String())
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

// alwaysCounted says that a rule had its algorithm under all of some policies.
func alwaysCounted(policies []*Policy, scope Scope, b Bound) bool {
	for _, policy := range policies {
		bounds, _ := policy.Match(scope) // no rule is no rule that counts
		if !slices.ContainsFunc(bounds, func(other Bound) bool {
			return other.Scope == b.Scope && other.Rule.Name == b.Rule.Name && other.Rule.Algorithm == b.Rule.Algorithm
		}) {
			return false
		}
	}
	return true
}
