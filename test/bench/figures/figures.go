// Package figures makes the figures of the benchmarks from what was seen: the moments at which runs started. It knows nothing of
// queues or of limiters, so that ours and its peers are measured alike. docs/benchmarks.md says what each figure means.
package figures

import (
	"math"
	"slices"
	"time"
)

// None is a figure that was not measured or does not exist.
var None = math.NaN()

// Rule is a limit as its user wrote it, without pads and margins.
type Rule struct {
	// Bucket says that it is a token bucket; otherwise it has windows.
	Bucket bool
	// Limit is how many starts Per admits, and Burst how many a full bucket admits at once; a window has none.
	Limit, Burst int64
	Per          time.Duration
}

// Bound returns the most starts that the rule admits in any half-open time of Per. A token bucket admits no more than Burst +
// Limit/Per × t in any time t, and so less than Burst + Limit in less than Per.
func (r Rule) Bound() int64 {
	if r.Bucket {
		return r.Limit + r.Burst - 1
	}
	return r.Limit
}

// Interval returns the time that a unit takes to come back.
func (r Rule) Interval() time.Duration { return r.times(1) }

// times returns the time that n units take to come back, without adding up what a division leaves.
func (r Rule) times(n int64) time.Duration {
	return time.Duration(float64(n) * float64(r.Per) / float64(r.Limit))
}

// Ideal returns the shortest time in which n units can start.
func (r Rule) Ideal(n int64) time.Duration {
	if r.Bucket {
		return r.times(max(0, n-r.Burst))
	}
	return time.Duration(max(0, n-1)/r.Limit) * r.Per
}

// Used returns the share of the rule that was used while a backlog waited: the shortest time in which the starts can happen, by
// the time they took. Starts are in order. A run that was cut was watched until then and no longer, with tasks left over: of a
// rule with windows the starts in the whole windows since the first start count. None where nothing can be said, such as of a
// rule whose window is longer than the run.
func (r Rule) Used(starts []time.Duration, cut time.Duration) float64 {
	n := int64(len(starts))
	switch {
	case n == 0:
		return None
	case cut == 0 && r.Ideal(n) > 0:
		return float64(r.Ideal(n)) / float64(starts[n-1]-starts[0])
	case cut == 0:
		return None
	case r.Bucket:
		return float64(r.Ideal(n)) / float64(cut-starts[0])
	}
	windows := int64((cut - starts[0]) / r.Per)
	if windows == 0 {
		return None
	}
	end, _ := slices.BinarySearch(starts, starts[0]+time.Duration(windows)*r.Per)
	return float64(end) / float64(windows*r.Limit)
}

// Quantile returns the smallest of the values that a share q of them do not pass. It sorts them. -1 when there are none.
func Quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return -1
	}
	slices.Sort(values)
	return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

// Median returns the middle one of the values, or None. It sorts them.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return None
	}
	slices.Sort(values)
	return values[len(values)/2]
}
