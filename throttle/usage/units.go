package usage

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
)

// The bounds of what is kept by unit, of a scope.
const (
	mostKinds      = 8 // units besides requests, between two flushes
	mostUnitFields = mostKinds * (1 + mostBy)
)

// spending is what was spent, by unit where costs are.
type spending struct {
	Sum
	units map[string]int64 // but for requests
}

func (s *spending) addUnit(unit string, n int64) {
	if s.units == nil {
		s.units = map[string]int64{}
	}
	s.units[unit] += n
}

func (s *spending) addAll(more spending) {
	s.add(more.Sum)
	for unit, n := range more.units {
		s.addUnit(unit, n)
	}
}

// admits reports whether a unit is counted separately already, or there is room for it.
func (a *account) admits(unit string) bool {
	_, known := a.all.units[unit]
	return known || len(a.all.units) < mostKinds && policy.Costs{unit: 1}.Check() == nil
}

// most returns the first few keys by their values, largest first.
func most(values map[string]int64, n int) []string {
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})[:min(len(values), n)]
}

// smallestUnits returns the fields of units beyond the mostKinds, and in each unit of those
// beyond the mostBy who spent most of it.
func smallestUnits(fields map[string]string) (small []string) {
	totals, of := map[string]int64{}, map[string]map[string]int64{}
	for field, text := range fields {
		n, _ := strconv.ParseInt(text, 10, 64)
		unit, name, spender := strings.Cut(field, ":")
		if of[unit] == nil {
			of[unit], totals[unit] = map[string]int64{}, 0
		}
		if spender {
			of[unit][name] = n
		} else {
			totals[unit] = n
		}
	}
	for i, unit := range most(totals, len(totals)) {
		keep := mostBy
		if i >= mostKinds {
			small, keep = append(small, unit), 0
		}
		for _, name := range most(of[unit], len(of[unit]))[min(keep, len(of[unit])):] {
			small = append(small, unit+":"+name)
		}
	}
	return small
}

// readUnits adds what one slot has by unit, which is less than nothing where more came back
// than was spent in it. Who is known by that alone is one of the others.
func (r *Report) readUnits(fields map[string]string, by map[By]*Spender) {
	for field, text := range fields {
		n, err := strconv.ParseInt(text, 10, 64)
		unit, name, of := strings.Cut(field, ":")
		if err != nil || n == 0 || (policy.Costs{unit: 1}).Check() != nil {
			continue // not written by this package
		}
		if !of {
			r.ByUnit = plus(r.ByUnit, unit, n)
			continue
		}
		who, ok := parseBy(name)
		if s := by[who]; ok && s != nil {
			s.ByUnit = plus(s.ByUnit, unit, n)
		}
	}
}

// spentOf leaves out the units of which no more was spent than came back of what had been
// spent before the report begins.
func spentOf(units map[string]int64) map[string]int64 {
	maps.DeleteFunc(units, func(_ string, n int64) bool { return n <= 0 })
	if len(units) == 0 {
		return nil
	}
	return units
}

func plus(units map[string]int64, unit string, n int64) map[string]int64 {
	if units == nil {
		units = map[string]int64{}
	}
	units[unit] += n
	return units
}

// otherUnits is what the spenders of the report leave of what was spent by unit.
func (r *Report) otherUnits() (others map[string]int64) {
	for unit, n := range r.ByUnit {
		for _, s := range r.Spenders {
			n -= s.ByUnit[unit]
		}
		if n > 0 {
			others = plus(others, unit, n)
		}
	}
	return others
}
