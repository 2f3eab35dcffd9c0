package wire

import (
	"math"
	"math/bits"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// The sliding window counts in cells of a grain, and a unit leaves less than a grain late. So many cells to a window leave at
// least 99 % of the limit usable (the default start tolerance of a one-second window included, with fineCells) in at most 700
// bytes: the larger the limit, the more bytes a cell may need. Up to exactLimit units there can never be more cells than units,
// and a grain is a microsecond, or so fine that every number still fits.
const (
	exactLimit = 128
	exactCells = 1 << 35
	fineLimit  = 10_000_000
	fineCells  = 200
	wideCells  = 128
)

// A token bucket's numbers stay below 2^53, where the scripts' doubles are exact: its burst in parts below maxParts, and what
// drains in a minute, of which there may be two (a start ahead, a clock that stepped back), below maxDrain times that.
const (
	maxParts = 1<<52 - 1
	maxDrain = 1 << 25
)

// lateAtOnce is how many tasks of cost 1 can be late at the same time, at the most: as many as all processes together run or
// hold.
const lateAtOnce = 1000

// cronPeriod is the shortest period of a calendar: cron knows none below a minute.
const cronPeriod = time.Minute

// ManyFit reports whether what passes a bucket within the start tolerance is more than all that can be late at once. The rate
// of such a bucket is one tolerance slower for that.
func ManyFit(r policy.Rule, tolerance time.Duration, cost int64) bool {
	if r.Algorithm != policy.TokenBucket || r.Margin > 0 || r.Limit < lateAtOnce || cost > math.MaxInt64/lateAtOnce {
		return false
	}
	units, _ := MulDiv(r.Limit, tolerance.Microseconds(), (r.Per + 2*tolerance).Microseconds())
	return units >= lateAtOnce*cost
}

// bucketTimes returns the time in µs in which a bucket refills its limit, and the slack that it demands before a unit.
//
// Calls that are late by different times are nearer to one another by up to late. Where there is a margin, the burst pays for
// that: it is smaller by what refills in the slack, and the bound holds over any time. A unit must be left of it, or else each
// call would wait for the slack. The rate pays for the rest, as for the tolerance, and the bound then holds over per and longer.
// A bucket that minds no late start is slowed once more for those. Source: docs/algorithms.md#token-bucket
func bucketTimes(r policy.Rule, tolerance time.Duration) (per, slack int64) {
	per, late := r.Per.Microseconds(), (tolerance + r.Margin).Microseconds()
	if spare := r.Capacity() - 1; r.Margin > 0 {
		// The limit refills in per + late - slack, and spare units in slack.
		paid, _ := MulDiv(per+late, spare, max(1, r.Limit+spare))
		slack = min(late, paid)
	}
	if per += late - slack; ManyFit(r, tolerance, 1) {
		per += tolerance.Microseconds()
	}
	return per, slack
}

// Numbers returns the kind and the numbers of a rule as scripts read them at a time: see lua/include/rules.lua. The start
// tolerance and the rule's margin widen its window: what starts or arrives late by no more than they are is still within the
// bound. Of a token bucket see bucketTimes.
func Numbers(r policy.Rule, tolerance time.Duration, at time.Time) (kind byte, numbers []int64) {
	slack, per := (tolerance + r.Margin).Microseconds(), r.Per.Microseconds()
	switch r.Algorithm {
	case policy.TokenBucket:
		per, slack = bucketTimes(r, tolerance)
		rate, unit := bucketRate(r.Limit, per, slack, r.Capacity())
		return 'T', []int64{rate, unit, min(r.Capacity(), maxParts/unit), slack}
	case policy.SlidingWindow:
		window := per + slack
		return 'S', []int64{r.Limit, window, grain(r.Limit, window), slack}
	case policy.FixedWindow:
		slack = min(slack, per/2)
		if r.OpensOnUse {
			// An API may see the first start late, and then its window ends late too: ours is longer by so much, and its last
			// starts are early enough to be seen in the same window.
			return 'S', []int64{r.Limit, per + slack, 0, 2 * slack}
		}
		return 'S', []int64{r.Limit, 0, per, slack} // a cell that leaves at its end
	case policy.Calendar:
		p := r.PeriodsAt(at)
		spread := int64(0)
		if r.Spread {
			spread = 1
		}
		slack = min(tolerance+r.Margin, cronPeriod/2).Microseconds()
		return 'K', []int64{r.Limit, p.Before.UnixMicro(), p.From.UnixMicro(), p.To.UnixMicro(), slack, r.Rollover, spread}
	default:
		return 'C', []int64{r.Limit, r.Lease.Microseconds()}
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

// bucketRate returns p and q so that a bucket drains p parts a microsecond and a unit is q parts: exactly limit/per where the
// numbers allow, otherwise as near as they do, never faster.
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
	// The finest parts that fit, what those drain in a microsecond, and then no finer than that needs.
	q, _ = MulDiv(drain, per, limit)
	p, _ = MulDiv(max(min(q, most), 1), limit, per)
	p = min(max(p, 1), drain)
	q, rest := MulDiv(p, per, limit)
	return p, q + min(rest, 1)
}

// MulDiv returns a*b/c, at most the largest int64, and the remainder.
func MulDiv(a, b, c int64) (quo, rest int64) {
	high, low := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // not negative
	if high >= uint64(c) {                        //nolint:gosec // as above
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(high, low, uint64(c))      //nolint:gosec // as above
	return int64(min(q, math.MaxInt64)), int64(r) //nolint:gosec // bounded
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// finer is by how much finer a bucket counts whose rate an API corrects.
const finer = 1000

// Finer is Numbers of a rule whose limit an API may correct by a part: a bucket counts in finer parts, as far as its numbers
// allow, so that parts of its rate are exact enough.
func Finer(r policy.Rule, tolerance time.Duration) (kind byte, numbers []int64) {
	kind, numbers = Numbers(r, tolerance, time.Time{})
	if kind == 'T' && numbers[0] > 0 {
		p, q, burst, slack := numbers[0], numbers[1], numbers[2], numbers[3]
		by := max(1, min(finer, maxDrain/p, maxParts/(2*q*burst), maxParts/(p*max(slack, 1))))
		numbers[0], numbers[1] = p*by, q*by
	}
	return kind, numbers
}

// LimitOf returns the limit of a rule that corrected numbers come to.
func LimitOf(kind byte, numbers []int64, r policy.Rule, tolerance time.Duration) int64 {
	if kind != 'T' {
		return numbers[0]
	}
	_, whole := Numbers(r, tolerance, time.Time{})
	limit, _ := MulDiv(numbers[0], r.Limit, max(1, whole[0]))
	limit, _ = MulDiv(limit, whole[1], max(1, numbers[1]))
	return max(1, limit)
}
