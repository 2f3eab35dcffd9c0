package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

// Requests is the unit that a rule counts by default.
const Requests = "requests"

// USD is the unit of money: millionths of a US dollar.
const USD = "usd"

// Number returns n units for people to read, without the name of the unit: "1500", or "$0.02" for USD.
func Number(n int64, unit string) string {
	if unit == USD {
		return "$" + strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) // exact: n has 15 digits at most
	}
	return strconv.FormatInt(n, 10)
}

// Amount is Number with the name of the unit: "1500 tokens", or "$0.02".
func Amount(n int64, unit string) string {
	if unit == USD {
		return Number(n, unit)
	}
	return Number(n, unit) + " " + unit
}

// UsageUnits returns the units that answers of language models settle: see package llm.
func UsageUnits() []string {
	return []string{"tokens", "input-tokens", "output-tokens", "cached-tokens", "cache-write-tokens", "reasoning-tokens", USD}
}

// Costs is a cost by unit: {"requests": 1, "tokens": 1500}. Requests default to 1, and other units to 0. A rule counts its own
// unit only. A rule whose unit costs 0 is neither asked nor charged. A concurrency rule counts one place.
type Costs map[string]int64

// defaultRequests is the amount of Requests if a cost does not give one.
const defaultRequests = 1

// The bounds of Costs.
const (
	maxUnits     = 16
	maxUnitBytes = 32
)

// ParseCosts parses the form that String writes: "requests=1,tokens=1500". The error is about the form, or is that of
// Costs.Check.
func ParseCosts(text string) (Costs, error) {
	costs := Costs{}
	for item := range strings.SplitSeq(text, ",") {
		unit, number, found := strings.Cut(item, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		_, twice := costs[unit]
		switch {
		case unit == USD && err != nil:
			return nil, fmt.Errorf("throttle: costs: %s is not a whole number, such as usd=20000 for 2 cents", quote(item))
		case !found || err != nil || strings.HasPrefix(number, "+"):
			return nil, fmt.Errorf("throttle: costs: %s is not a unit and a whole number, such as tokens=1500", quote(item))
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

// String returns the units in alphabetical order, as "requests=1,tokens=1500".
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

// Of returns the amount of a unit: 0 if it is not given, 1 for Requests.
func (c Costs) Of(unit string) int64 {
	if n, given := c[unit]; given || unit != Requests {
		return n
	}
	return defaultRequests
}

// Zero reports whether the costs name a unit and all amounts are 0, requests included.
func (c Costs) Zero() bool {
	for _, n := range c {
		if n != 0 {
			return false
		}
	}
	return c.Of(Requests) == 0
}

// Check returns an error unless there are 1 to 16 units, each named by 1 to 32 lower-case letters, digits, '-' and '_', with an
// amount of 0 to 1e12, and not all amounts are 0. A request that takes nothing is valid for Limiter.Decide, but cannot wait in a
// queue.
func (c Costs) Check() error {
	if err := c.CheckUnits(); err != nil {
		return err
	}
	if c.Zero() {
		return errors.New("throttle: costs: all are 0; what costs nothing needs no limit")
	}
	return nil
}

// CheckUnits is Check, but all amounts may be 0, as in a settlement.
func (c Costs) CheckUnits() error {
	if len(c) == 0 || len(c) > maxUnits {
		return fmt.Errorf("throttle: costs: %d units; write 1 to %d", len(c), maxUnits)
	}
	for _, unit := range slices.Sorted(maps.Keys(c)) {
		if reason := unitReason(unit); reason != "" {
			return fmt.Errorf("throttle: costs: unit %s %s", quote(unit), reason)
		}
		if n := c[unit]; n < 0 || n > MaxLimit {
			return fmt.Errorf("throttle: costs: %d %s; write 0 to %d", n, unit, int64(MaxLimit))
		}
	}
	return nil
}

// unitReason returns why a text is not the name of a unit, empty if it is one.
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

// Under returns the amount that a rule of a Policy is charged: that of its own unit, or one place for a concurrency rule.
func (c Costs) Under(r Rule) int64 {
	if r.Algorithm == Concurrency {
		return defaultRequests
	}
	return c.Of(r.Unit)
}

// Capped returns the costs as they are charged before they are settled, under the rules that Match returns: the amount of a unit is at
// most the smallest that the Cap of a rule allows. It returns c itself if that changes nothing.
func (c Costs) Capped(bounds []MatchedRule) Costs {
	capped := c
	for _, b := range bounds {
		r := b.Rule
		most := max(r.Capacity()*r.Cap/100, 1)
		if r.Cap == 0 || r.Shadow || r.Limit == 0 || capped[r.Unit] <= most {
			continue
		}
		capped = maps.Clone(capped)
		capped[r.Unit] = most
	}
	return capped
}

// Misspelt returns a unit of the costs that none of the rules counts, and the unit of a rule that was most likely meant: one that is
// spelt alike and that the costs do not name. Both are empty if there is none.
func (c Costs) Misspelt(bounds []MatchedRule) (unit, meant string) {
	var counted []string
	for _, b := range bounds {
		counted = append(counted, b.Rule.Unit)
	}
	for _, unit := range slices.Sorted(maps.Keys(c)) {
		if meant := diag.Nearest(unit, counted); meant != "" && !slices.Contains(counted, unit) && c.Of(meant) == 0 {
			return unit, meant
		}
	}
	return "", ""
}

// CheckMatched returns a *CostError if a rule can never admit what charge returns for it, else nil. If there are several such
// rules, the error names the one with the smallest capacity. bounds are the rules that Match returns for s.
func CheckMatched(s Scope, bounds []MatchedRule, charge func(Rule) int64) error {
	var worst *CostError
	for _, b := range bounds {
		if b.Rule.Algorithm == Concurrency || b.Rule.Limit == 0 || b.Rule.Shadow || b.Rule.Active != nil {
			continue
		}
		cost, most := charge(b.Rule), b.Rule.Capacity()
		if cost > most && (worst == nil || most < worst.Capacity) {
			worst = &CostError{Scope: s, Rule: b.Rule.Name, Unit: b.Rule.Unit, Cost: cost, Capacity: most}
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}
