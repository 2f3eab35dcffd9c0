package throttle

import (
	"github.com/headway-go/headway/throttle/policy"
	"maps"
	"slices"
	"time"
)

// everybodys says that it is no rule of a policy's, but one that each task meets.
func everybodys(r policy.Rule) bool { return r.Name == policy.PausedRule || r.Name == openRule.Name }

// charged is what a rule is charged of costs.
func charged(costs policy.Costs, r policy.Rule) int64 {
	switch {
	case everybodys(r):
		return defaultCost
	case costs.Zero():
		return 0 // no place either
	}
	return costs.Under(r)
}

// price is what a request takes under each rule of the plan that decides it.
func (p *compiledScope) price(r *Request) price {
	if len(r.Costs) == 0 {
		return price{each: r.Cost}
	}
	by := make([]int64, len(p.bounds))
	for i, b := range p.bounds {
		by[i] = charged(r.Costs, b.Rule)
	}
	if len(by) > 0 && slices.Min(by) == slices.Max(by) {
		return price{each: by[0]}
	}
	return price{by: by}
}

// counted returns the plan of those rules that count any of the costs. Plans are kept, as
// those of scopes are, each as long as that of its scope.
func (c *scopeCache) counted(p *compiledScope, costs policy.Costs) *compiledScope {
	mask := make([]byte, len(p.all))
	for i, b := range p.all {
		if mask[i] = '1'; charged(costs, b.Rule) == 0 {
			mask[i] = '0'
		}
	}
	if !slices.Contains(mask, '0') {
		return p
	}
	key := p.key + "\x00" + string(mask) // no scope holds a zero
	c.mu.RLock()
	known := c.known[key]
	c.mu.RUnlock()
	if known != nil && known.part.of == p && known.holds(c.now) {
		return known
	}
	at := c.now(p.provider)
	if begins := time.UnixMicro(p.from); p.until != 0 && at.Before(begins) { // which a reply has told
		at = begins
	}
	some := c.partOf(p, costs, at)
	some.key = key
	c.keep(some)
	return some
}

// portion is the plan of which another one leaves out rules, and the costs that it is for.
type portion struct {
	of    *compiledScope
	costs policy.Costs
}

// partOf makes the plan of those rules that count any of the costs at a time. It holds no longer
// than the other: whose hours begin or end may be a rule that it leaves out.
func (c *scopeCache) partOf(p *compiledScope, costs policy.Costs, at time.Time) *compiledScope {
	var all []policy.MatchedRule
	for _, b := range p.all {
		if charged(costs, b.Rule) > 0 {
			all = append(all, b)
		}
	}
	if len(all) == 0 { // it may be paused, and its line stays in order
		all = []policy.MatchedRule{{Rule: openRule, Scope: p.scope}}
	}
	some := compileScope(c.keys, p.scope, all, c.pad, at)
	some.made, some.settings, some.part = p.made, p.settings, portion{p, maps.Clone(costs)}
	if p.hours.until != 0 {
		some.within(calendarWindow{from: p.hours.from, to: p.hours.until})
	}
	some.weigh(p.named)
	some.levels = p.levels // its scope shares at those of the rules that are left out, too
	for i, name := range p.keys {
		if !slices.Contains(some.keys, name) {
			some.others += otherText(name[len(p.provider):], p.bounds[i].Rule.Unit)
		}
	}
	return some
}

// otherText names a rule that is left out, and its unit, unless that is the usual one.
func otherText(name, unit string) string {
	if unit != policy.Requests {
		name += "\x01" + unit
	}
	return name + "\x00"
}

// checkCosts refuses costs that no wait could admit.
func (p *compiledScope) checkCosts(costs policy.Costs) error {
	if err := costs.Check(); err != nil {
		return err
	}
	return policy.CheckMatched(p.scope, p.bounds, func(r policy.Rule) int64 { return charged(costs, r) })
}
