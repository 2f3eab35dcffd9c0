package throttle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Requests is the unit that a rule counts unless it names another.
const Requests = "requests"

// Costs is what something takes, by unit: {"requests": 1, "tokens": 1500}. Requests
// that are not given are 1, and other units 0. A rule counts its own unit alone, and one
// whose unit costs 0 is not asked and not charged; a concurrency rule counts one place.
type Costs map[string]int64

// The bounds of Costs.
const (
	maxUnits     = 16
	maxUnitBytes = 32
)

// ParseCosts reads what String writes: "requests=1,tokens=1500". The error says what is
// wrong, as that of Check does.
func ParseCosts(text string) (Costs, error) {
	costs := Costs{}
	for one := range strings.SplitSeq(text, ",") {
		unit, number, found := strings.Cut(one, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		_, twice := costs[unit]
		switch {
		case !found || err != nil || strings.HasPrefix(number, "+"):
			return nil, fmt.Errorf("throttle: costs: %s is not a unit and a whole number, such as tokens=1500", quote(one))
		case twice:
			return nil, fmt.Errorf("throttle: costs: %s stands there twice", quote(unit))
		}
		costs[unit] = n
	}
	if err := costs.Check(); err != nil {
		return nil, err
	}
	return costs, nil
}

// String writes the units in alphabetical order, as "requests=1,tokens=1500".
func (c Costs) String() string {
	var b strings.Builder
	for _, unit := range slices.Sorted(maps.Keys(c)) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(unit + "=" + strconv.FormatInt(c[unit], 10))
	}
	return b.String()
}

// Of returns how much of a unit they are.
func (c Costs) Of(unit string) int64 {
	if n, given := c[unit]; given || unit != Requests {
		return n
	}
	return defaultCost
}

// Check tells what is wrong with them, if anything: there are 1 to 16 units, each named
// by 1 to 32 lower-case letters, digits, '-' and '_' and 0 to 1e12 of it, and not all are 0.
func (c Costs) Check() error {
	if err := c.checkUnits(); err != nil {
		return err
	}
	for unit := range c {
		if c[unit] > 0 {
			return nil
		}
	}
	if c.Of(Requests) > 0 {
		return nil
	}
	return errors.New("throttle: costs: all are 0; what costs nothing needs no limit")
}

// checkUnits is Check, but all may be 0.
func (c Costs) checkUnits() error {
	if len(c) == 0 || len(c) > maxUnits {
		return fmt.Errorf("throttle: costs: %d units; write 1 to %d", len(c), maxUnits)
	}
	for _, unit := range slices.Sorted(maps.Keys(c)) {
		if reason := unitReason(unit); reason != "" {
			return fmt.Errorf("throttle: costs: unit %s %s", quote(unit), reason)
		}
		if n := c[unit]; n < 0 || n > maxLimit {
			return fmt.Errorf("throttle: costs: %d %s; write 0 to %d", n, unit, int64(maxLimit))
		}
	}
	return nil
}

// unitReason says why a text is not the name of a unit, if it is not.
func unitReason(unit string) string {
	switch {
	case unit == "":
		return "is empty; write a name such as tokens"
	case len(unit) > maxUnitBytes:
		return fmt.Sprintf("is %d bytes long; the most is %d", len(unit), maxUnitBytes)
	case strings.Trim(unit, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
		return "is no unit's name; write lower-case letters, digits, '-' and '_'"
	}
	return ""
}

// under is what a rule is charged.
func (c Costs) under(r Rule) int64 {
	if r.Algorithm == Concurrency || r.everybodys() {
		return defaultCost
	}
	return c.Of(r.unit())
}

// everybodys says that it is no rule of a policy's, but one that each task meets.
func (r Rule) everybodys() bool { return r.Name == PausedRule || r.Name == openRule.Name }

// price is what a request takes under each rule of its plan.
type price struct {
	each int64   // under every rule, where by is nil
	by   []int64 // rule by rule
}

func (c price) at(i int) int64 {
	if c.by == nil {
		return c.each
	}
	return c.by[i]
}

// price is what a request takes under each rule of the plan that decides it.
func (p *compiledScope) price(r *Request) price {
	if len(r.Costs) == 0 {
		return price{each: r.Cost}
	}
	by := make([]int64, len(p.bounds))
	for i, b := range p.bounds {
		by[i] = r.Costs.under(b.Rule)
	}
	if len(by) > 0 && slices.Min(by) == slices.Max(by) {
		return price{each: by[0]}
	}
	return price{by: by}
}

// counted returns the plan of those rules that count any of the costs. Plans are kept, as
// those of scopes are, each as long as that of its scope.
func (c *scopeCache) counted(p *compiledScope, costs Costs) *compiledScope {
	mask := make([]byte, len(p.all))
	for i, b := range p.all {
		if mask[i] = '1'; costs.under(b.Rule) == 0 {
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
	costs Costs
}

// partOf makes the plan of those rules that count any of the costs at a time. It holds no longer
// than the other: whose hours begin or end may be a rule that it leaves out.
func (c *scopeCache) partOf(p *compiledScope, costs Costs, at time.Time) *compiledScope {
	var all []MatchedRule
	for _, b := range p.all {
		if costs.under(b.Rule) > 0 {
			all = append(all, b)
		}
	}
	if len(all) == 0 { // it may be paused, and its line stays in order
		all = []MatchedRule{{Rule: openRule, Scope: p.scope}}
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
			some.others += otherText(name[len(p.provider):], p.bounds[i].Rule.unit())
		}
	}
	return some
}

// otherText names a rule that is left out, and its unit, unless that is the usual one.
func otherText(name, unit string) string {
	if unit != Requests {
		name += "\x01" + unit
	}
	return name + "\x00"
}

// checkCosts refuses costs that no wait could admit.
func (p *compiledScope) checkCosts(costs Costs) error {
	if err := costs.Check(); err != nil {
		return err
	}
	return worstOf(p.scope, p.bounds, costs.under)
}

// worstOf returns a *CostError for the rule that admits least of those that can never admit
// what they would be charged, nil where there is none.
func worstOf(s Scope, bounds []MatchedRule, charge func(Rule) int64) error {
	var worst *CostError
	for _, b := range bounds {
		if b.Rule.Algorithm == Concurrency || b.Rule.Limit == 0 || b.Rule.Shadow || b.Rule.Active != "" {
			continue
		}
		cost, most := charge(b.Rule), b.Rule.Capacity()
		if cost > most && (worst == nil || most < worst.Capacity) {
			worst = &CostError{Scope: s, Rule: b.Rule.Name, Unit: b.Rule.unit(), Cost: cost, Capacity: most}
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}
