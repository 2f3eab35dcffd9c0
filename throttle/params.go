package throttle

import (
	"math"
	"math/bits"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// params are the kind and the numbers of a rule, as lua.Rule takes them.
type params struct {
	kind    byte
	numbers [4]int64
}

// after returns what a rule that has been charged at now says then: what remains, and
// how long until it is as if unused. The charge was put in place, and the rule holds
// so much with it; of a concurrency rule place is when its last lease ends. It is what decide works out itself; see lua/include/fastpath/decide.lua.
func (r params) after(now, place, holds int64) (remaining, reset int64) {
	switch n := r.numbers; r.kind {
	case 'T':
		rate, unit, burst, slack := n[0], n[1], n[2], n[3]
		level := holds + (place-now)*rate
		remaining = max(0, (burst*unit-level-slack*rate)/unit)
		return remaining, int64(math.Ceil(float64(level)/float64(rate) + float64(slack)))
	case 'C':
		return n[0] - holds, place - now
	default:
		return n[0] - holds, place + n[1] - now
	}
}

// The sliding window counts in cells of a grain, and a unit leaves less than a
// grain late. So many cells to a window leave at least 99 % of the limit usable
// (the default pad of a one-second window included, with fineCells) in at most
// 1 KB, whatever comes: the larger the limit, the more bytes a cell may need. Up
// to exactLimit units there can never be more cells than units, and a grain is a
// microsecond, or so fine that every number still fits.
const (
	exactLimit = 128
	exactCells = 1 << 35
	fineLimit  = 10_000_000
	fineCells  = 200
	wideCells  = 128
)

// A token bucket's numbers stay below 2^53, where the scripts' doubles are exact:
// its burst in parts below maxParts, and what drains in a minute, of which there
// may be two (a start ahead, a clock that stepped back), below maxDrain times that.
const (
	maxParts = 1<<52 - 1
	maxDrain = 1 << 25
)

// bucketTimes returns the time in which a bucket refills its limit, and the slack that it demands before
// a unit.
//
// Calls that are late by different times are nearer to one another by up to late. Where there is a
// margin or a prefetch, the burst pays for that: it is smaller by what refills in the slack, and the bound
// holds over any time. A unit must be left of it, or else each call would wait for the slack. The rate
// pays for the rest, as for the pad, and the bound then holds over per and longer. A bucket that minds no
// late start is slowed once more for those. most is how many millionths of its limit it may grow to.
// Source: docs/algorithms.md#token-bucket
func bucketTimes(r policy.Rule, pad time.Duration, most int64) (per, slack int64) {
	per, late := r.Per.Microseconds(), (pad + widened(r)).Microseconds()
	if spare := r.Capacity() - 1; widened(r) > 0 {
		// The limit refills in per + late - slack, and spare units in slack.
		paid, _ := mulDiv(per+late, spare, max(1, mostOf(r.Limit, max(most, whole))+spare))
		slack = min(late, paid)
	}
	if per += late - slack; manyFit(r, pad, 1) {
		per += pad.Microseconds() // for what is later than the pad
	}
	return per, slack
}

// ruleParams returns the kind and the numbers of a rule, as lua.Rule takes them, if its limit may grow to
// most millionths of it. The pad, the rule's margin and its prefetch widen its window: what starts or
// arrives late by no more than they are is still within the bound. Of a token bucket see bucketTimes.
func ruleParams(r policy.Rule, pad time.Duration, most int64) (kind byte, numbers [4]int64) {
	slack := (pad + widened(r)).Microseconds()
	per := r.Per.Microseconds()
	switch r.Algorithm {
	case policy.TokenBucket:
		per, slack = bucketTimes(r, pad, most)
		rate, unit := bucketRate(r.Limit, per, slack, r.Capacity())
		return 'T', [4]int64{rate, unit, min(r.Capacity(), maxParts/unit), slack}
	case policy.SlidingWindow:
		window := per + slack
		return 'S', [4]int64{r.Limit, window, grain(r.Limit, window), slack}
	case policy.FixedWindow:
		slack = min(slack, per/2)
		if r.OpensOnUse {
			// An API may see the first start late, and then its window ends late too: ours is longer by so much, and its
			// last starts are early enough to be seen in the same window.
			return 'S', [4]int64{r.Limit, per + slack, 0, 2 * slack}
		}
		return 'S', [4]int64{r.Limit, 0, per, slack} // a cell that leaves at its end
	case policy.Calendar:
		return 'K', numbers // which depend on the time: see calendarParams
	default:
		return 'C', [4]int64{r.Limit, r.Lease.Microseconds()}
	}
}

// grain returns the length of a sliding window's cells in microseconds.
func grain(limit, window int64) int64 {
	cells := int64(wideCells)
	switch {
	case limit <= exactLimit:
		cells = exactCells
	case limit <= fineLimit:
		cells = fineCells
	}
	return (window + cells - 1) / cells
}

// bucketRate returns p and q so that a bucket drains p parts a microsecond and a
// unit is q parts: exactly limit/per where the numbers allow, otherwise as near
// as they do, never faster.
func bucketRate(limit, per, slack, burst int64) (p, q int64) {
	if limit == 0 {
		return 0, 1
	}
	d := gcd(limit, per)
	p, q = limit/d, per/d
	most, drain := maxParts/burst, min(maxDrain, maxParts/max(slack, 1))
	if p <= drain && q <= most {
		return p, q
	}
	// The finest parts that fit, what those drain in a microsecond, and then no
	// finer than that needs.
	q, _ = mulDiv(drain, per, limit)
	p, _ = mulDiv(max(min(q, most), 1), limit, per)
	p = min(max(p, 1), drain)
	q, rest := mulDiv(p, per, limit)
	return p, q + min(rest, 1)
}

// mulDiv returns a*b/c, at most the largest int64, and the remainder.
func mulDiv(a, b, c int64) (quo, rest int64) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high >= uint64(c) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(high, low, uint64(c))
	return int64(min(q, math.MaxInt64)), int64(r) //nolint:gosec // bounded
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// unitText is what follows a rule's numbers: its unit, unless that is the usual one, and
// "*" where each task counts, whatever it costs.
func unitText(r policy.Rule) string {
	if everybodys(r) {
		return "*"
	}
	if unit := r.Unit; unit != policy.Requests && unit != "" {
		return unit
	}
	return ""
}

// kindsOf puts kinds in the order of lua.Kinds.
func kindsOf(present map[byte]bool) (kinds string) {
	for i := range len(lua.Kinds) {
		if present[lua.Kinds[i]] {
			kinds += string(lua.Kinds[i])
		}
	}
	return kinds
}
