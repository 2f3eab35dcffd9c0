package throttle

import (
	"math"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle/policy"
)

// Free returns how many units the rule admits at once. It does no I/O.
func (r *RuleForecast) Free() int64 {
	switch {
	case r.Algorithm == policy.Calendar && (!r.Limited || r.Spread && r.RetryAfter < r.Rest):
		return max(0, r.Remaining) // with the units that were rolled over; at once, or by the end of the period
	case r.Limited:
		return 0
	}
	return max(0, min(r.Remaining, r.Limit))
}

// AdmitsIn estimates the time from Forecast.At until the rule has admitted this many units. It is not known for a suspended rule,
// nor for a concurrency rule with fewer free places if no run has ended lately. It does no I/O. Not safe for concurrent use.
func (r *RuleForecast) AdmitsIn(units int64) Estimate {
	if r.Algorithm == policy.Concurrency {
		return r.RunTimes.Wait(inspect.PlaceQueue{Tasks: units, Held: r.Limit - r.Free() + r.over}, r.Limit)
	}
	d, known := r.admitsIn(units)
	if !known {
		return inspect.Unknown
	}
	return inspect.Exactly(d)
}

// admitsIn is AdmitsIn for a rate rule; known is false if no clock can tell.
func (r *RuleForecast) admitsIn(units int64) (in time.Duration, known bool) {
	free := r.Free()
	if r.Units == 0 {
		return 0, false
	}
	if r.Spread {
		return r.spread(units, free)
	}
	if units <= free {
		return 0, true
	}
	switch r.Algorithm {
	case policy.TokenBucket:
		return r.spans(float64(units-r.Limit)/float64(r.Units), r.ResetAfter)
	case policy.Calendar:
		return r.period((units - free - 1) / r.Limit)
	case policy.FixedWindow:
		next := r.Rest
		if r.Limited {
			next = r.RetryAfter
		}
		return r.spans(math.Floor(float64(units-free-1)/float64(r.Limit)), next)
	default:
		windows, place := (units-1)/r.Limit, (units-1)%r.Limit
		return r.spans(float64(windows), r.leave(place-free))
	}
}

// spread is admitsIn for a calendar that spreads its remaining units over the rest of the period.
func (r *RuleForecast) spread(units, free int64) (time.Duration, bool) {
	if units <= free {
		first := max(0, r.RetryAfter)
		return first + time.Duration(float64(r.Rest-first)*float64(units-1)/float64(free)), true
	}
	periods, place := (units-free-1)/r.Limit, (units-free-1)%r.Limit
	begins, ends := r.begins(periods+1), r.begins(periods+2)
	if begins > math.MaxInt64/2 || ends > math.MaxInt64/2 {
		return 0, false
	}
	return begins + time.Duration(float64(ends-begins)*float64(place)/float64(r.Limit)), true
}

// period returns the time until a calendar gives units again, plus later periods.
func (r *RuleForecast) period(later int64) (time.Duration, bool) {
	first := int64(1)
	switch {
	case r.Limited && r.RetryAfter == Never:
		return 0, false
	case r.Limited && later == 0:
		return max(0, r.RetryAfter), true
	case r.Limited && r.RetryAfter > r.begins(1): // the next period is used up, too
		first = 2
	}
	d := r.begins(first + later)
	return max(0, d), d <= math.MaxInt64/2
}

// leave returns when the unit at a place of a sliding window leaves the window. It assumes that units
// are evenly spread between the first and the last. Places below 0 are free already.
func (r *RuleForecast) leave(place int64) time.Duration {
	if place < 0 {
		return 0
	}
	held := r.Limit - r.Free()
	if held == 1 {
		return r.ResetAfter
	}
	return r.RetryAfter + time.Duration(float64(r.ResetAfter-r.RetryAfter)*float64(place)/float64(held-1))
}

// spans returns n times Per, plus more. It returns false if a time.Duration cannot hold the sum.
func (r *RuleForecast) spans(n float64, more time.Duration) (time.Duration, bool) {
	d := n*float64(r.Per) + float64(more)
	if d > math.MaxInt64/2 || more == Never {
		return 0, false
	}
	return max(0, time.Duration(d)), true
}
