package reference

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
)

// Spent is what was granted under one rule, by its starts and, of a run, its end.
type Spent struct {
	Start, End int64
	Units      int64
}

// Over judges starts by the bound alone that docs/algorithms.md states of the rule: it knows
// nothing of states, cells, pads or decisions. It returns what is wrong, "" when nothing is. Units
// that were given back are to be left out.
func Over(r Rule, list []Spent) string { return OverLate(r, list, 0) }

// OverLate is Over for starts that were seen up to late microseconds nearer to one another than the burst of
// a token bucket pays for: it then keeps "burst + limit/(per + late) × (t + late)" over any t, which is at most
// its bound where t is per or longer.
func OverLate(r Rule, list []Spent, late int64) string {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Spent) int { return cmp.Compare(a.Start, b.Start) })
	switch r.Algorithm {
	case TokenBucket:
		return overBucket(r, list, late)
	case SlidingWindow:
		return overWindow(r, list)
	case FixedWindow:
		if r.OnUse {
			return overOpened(r, list)
		}
		return overPeriods(r, list, func(t int64) int64 { return t / r.Per }, 0)
	case CalendarQuota:
		return overPeriods(r, list, func(t int64) int64 { from, _ := r.Begins(t); return from }, r.Rollover)
	case Concurrency:
		return overPlaces(r, list)
	}
	return "no algorithm " + string(r.Algorithm)
}

// overBucket: at most burst + limit/per × t units start in any time t. Of all times that end with a
// start, the worst begins where the units before it are fewest for their time.
func overBucket(r Rule, list []Spent, late int64) string {
	if r.Limit == 0 {
		return none(list)
	}
	unit := big.NewRat(r.Per+late, r.Limit)
	full := new(big.Rat).Mul(unit, new(big.Rat).SetInt64(r.Burst))
	full.Add(full, new(big.Rat).SetInt64(late))
	// In units of time: the sum of Σc·unit − (s_j − s_i) over i…j must be at most full.
	sum, least := new(big.Rat), new(big.Rat)
	for i, s := range list {
		before := new(big.Rat).Sub(sum, new(big.Rat).SetInt64(s.Start))
		if i == 0 || before.Cmp(least) < 0 {
			least = before
		}
		sum = new(big.Rat).Add(sum, new(big.Rat).Mul(unit, new(big.Rat).SetInt64(s.Units)))
		used := new(big.Rat).Sub(sum, new(big.Rat).SetInt64(s.Start))
		if used.Sub(used, least).Cmp(full) > 0 {
			return fmt.Sprintf("until the start at %d there were %s of %s units too many for the time", s.Start,
				used.Sub(used, full).Quo(used, unit).FloatString(6), full.Quo(full, unit).FloatString(3))
		}
	}
	return ""
}

// overWindow: never more than limit units in any window (u − per, u]. The fullest end with a start.
func overWindow(r Rule, list []Spent) string {
	var in, first int64
	for i, s := range list {
		in += s.Units
		for list[first].Start <= s.Start-r.Per {
			in -= list[first].Units
			first++
		}
		if in > r.Limit {
			return fmt.Sprintf("%d units in the window that ends with start %d, at %d", in, i, s.Start)
		}
	}
	return ""
}

// overPeriods: at most limit units in each period, and at most more that the one before left over.
func overPeriods(r Rule, list []Spent, period func(int64) int64, rollover int64) string {
	sums := map[int64]int64{}
	for _, s := range list {
		p := period(s.Start)
		if sums[p] += s.Units; sums[p] > r.Limit+rollover {
			return fmt.Sprintf("%d units in the period that has %d", sums[p], s.Start)
		}
	}
	return ""
}

// overOpened: each start is in a window of per, and they do not overlap, and none has more than limit. Where they
// begin is not known, since what opened them may have been given back. So it is tried how soon the last can end.
func overOpened(r Rule, list []Spent) string {
	ends := make([]int64, len(list)+1) // when the windows of the first so many starts end at the soonest
	for i := range ends {
		ends[i] = Never
	}
	ends[0] = -Never
	for from, one := range list {
		if ends[from] == Never { // and so for all that follow
			break
		}
		units := int64(0)
		for i, s := range list[from:] {
			units += s.Units
			begins := max(ends[from], s.Start-r.Per+1)
			if units > r.Limit || begins > one.Start {
				break
			}
			ends[from+i+1] = min(ends[from+i+1], begins+r.Per)
		}
	}
	for i, s := range list {
		if ends[i+1] == Never {
			return fmt.Sprintf("no windows that have the start at %d, and those before it", s.Start)
		}
	}
	return ""
}

// overPlaces: at most limit runs hold a place at once.
func overPlaces(r Rule, list []Spent) string {
	for _, s := range list {
		n := int64(0)
		for _, o := range list {
			if o.Start <= s.Start && s.Start < o.End {
				n++
			}
		}
		if n > r.Limit {
			return fmt.Sprintf("%d runs at %d", n, s.Start)
		}
	}
	return ""
}

func none(list []Spent) string {
	if len(list) > 0 {
		return fmt.Sprintf("a start at %d under a rule that is suspended", list[0].Start)
	}
	return ""
}
