package checker

import (
	"cmp"
	"math/big"
	"slices"
	"time"
)

// span is one call as a rule sees it: from when to when, and what it takes.
type span struct {
	from, to time.Duration
	units    int64
}

// worst is the fullest that a rule ever was.
type worst struct {
	units    int64         // the most in one window, or at once
	at       time.Duration // when that window began
	exceeded bool
	excess   *big.Rat // token-bucket only: the most units above burst + limit/per*t, below zero when none
}

// slidingWorst finds the most units in any half-open window [t, t+width). It is enough to look at windows that begin with a call.
func slidingWorst(calls []span, width time.Duration) (units int64, at time.Duration) {
	var sum int64
	first := 0
	for _, c := range calls {
		sum += c.units
		for c.from-calls[first].from >= width {
			sum -= calls[first].units
			first++
		}
		if sum > units {
			units, at = sum, calls[first].from
		}
	}
	return units, at
}

// sliding decides a sliding-window rule. Jitter narrows the window: two calls
// that were a whole window apart may be seen that much closer together.
func sliding(calls []span, r rule, jitter time.Duration) worst {
	units, at := slidingWorst(calls, r.per-jitter)
	return worst{units: units, at: at, exceeded: units > r.limit}
}

// bucket decides a token-bucket rule: the calls i to j may take no more than burst + limit/per * (from[j]-from[i]+jitter), for
// every i <= j. What its burst does not pay of a margin lengthens per and jitter: see rule.unpaid. Multiplied by per all of it is
// whole numbers, and the greatest excess is found in one pass:
//
//	excess(i,j)*per = (per*sum(0..j) - limit*from[j]) - (per*sum(0..i-1) - limit*from[i]) - burst*per - limit*jitter
func bucket(calls []span, r rule, jitter time.Duration) worst {
	w := worst{}
	w.units, w.at = slidingWorst(calls, r.per)
	rest := r.unpaid()
	per, limit := big.NewInt(int64(r.per+rest)), big.NewInt(r.limit)
	taken := new(big.Int) // per * units so far
	var lowest, top *big.Int
	for _, c := range calls {
		refill := new(big.Int).Mul(limit, big.NewInt(int64(c.from)))
		if low := new(big.Int).Sub(taken, refill); lowest == nil || low.Cmp(lowest) < 0 {
			lowest = low
		}
		taken.Add(taken, new(big.Int).Mul(per, big.NewInt(c.units)))
		high := new(big.Int).Sub(taken, refill)
		if high.Sub(high, lowest); top == nil || high.Cmp(top) > 0 {
			top = high
		}
	}
	if top == nil {
		return w
	}
	top.Sub(top, new(big.Int).Mul(per, big.NewInt(r.burst)))
	top.Sub(top, new(big.Int).Mul(limit, big.NewInt(int64(jitter+rest))))
	w.excess = new(big.Rat).SetFrac(top, per)
	w.exceeded = top.Sign() > 0
	return w
}

// tolerance is what docs/algorithms.md calls the pad, by default.
const tolerance = 5 * time.Millisecond

// unpaid is what the burst does not pay of a margin and the pad: "limit × (t + ρ)/(per + ρ), ρ = σ − slack".
func (r rule) unpaid() time.Duration {
	if r.margin == 0 {
		return 0
	}
	late := r.margin + tolerance
	paid := new(big.Int).Mul(big.NewInt(max(0, r.burst-1)), big.NewInt((r.per + late).Microseconds()))
	paid.Quo(paid, big.NewInt(max(1, r.limit+r.burst-1)))
	if paid.Cmp(big.NewInt(late.Microseconds())) >= 0 {
		return 0
	}
	return late - time.Duration(paid.Int64())*time.Microsecond
}

// fixed decides a rule whose windows are aligned: to the unix epoch, or to a calendar; window tells that of a moment. A call that
// was seen less than jitter after a window's start may belong to the window before, and is counted there as far as there is room;
// units of one call may be split between the two, which can only excuse too much. What a window leaves over adds to the next, as
// far as the rule rolls it over.
func fixed(calls []span, r rule, jitter time.Duration, window func(time.Duration) (start, length time.Duration)) worst {
	var w worst
	var room int64 // left in the window before the one at hand
	next := time.Duration(-1 << 63)
	for len(calls) > 0 {
		start, length := window(calls[0].from)
		var hard, soft int64
		n := 0
		for ; n < len(calls) && calls[n].from < start+length; n++ {
			if calls[n].from < start+jitter {
				soft += calls[n].units
			} else {
				hard += calls[n].units
			}
		}
		if start != next { // nothing is known of it, or it had no calls
			room = r.limit + r.rollover
		}
		early := min(soft, room)
		over := min(r.rollover, room-early)
		units := hard + soft - early
		if beyond := max(0, units-over); beyond > w.units {
			w.units, w.at = beyond, start
		}
		room, next, calls = max(0, r.limit+over-units), start+length, calls[n:]
	}
	w.exceeded = w.units > r.limit
	return w
}

// opened decides a fixed window that opens on use: whether the calls fit into windows of per that follow one
// another with at most limit in each. Of all ways to lay the windows over the first calls it keeps the one
// that ends first. Jitter lengthens each window, and its calls may be split with the next, which can only excuse too much.
func opened(calls []span, r rule, jitter time.Duration) worst {
	const never = time.Duration(1<<63 - 1)
	var w worst
	w.units, w.at = slidingWorst(calls, r.per-jitter)
	w.units = min(w.units, r.limit) // more may be of two windows
	ends := slices.Repeat([]time.Duration{never}, len(calls)+1)
	ends[0] = -never
	for from, first := range calls {
		if ends[from] == never {
			return worst{units: r.limit + 1, at: calls[from-1].from, exceeded: true}
		}
		var units, most int64
		for i, c := range calls[from:] {
			units, most = units+c.units, max(most, c.units)
			over := units - r.limit
			if jitter > 0 {
				over -= most - 1
			}
			begins := max(ends[from], c.from-r.per-jitter+1)
			if over > 0 || begins > first.from {
				break
			}
			ends[from+i+1] = min(ends[from+i+1], begins+r.per)
		}
	}
	if ends[len(calls)] == never {
		return worst{units: r.limit + 1, at: calls[len(calls)-1].from, exceeded: true}
	}
	return w
}

// windowOf returns the number of the aligned window that holds a moment, and how far into it the moment is.
func windowOf(at, per time.Duration, epoch time.Time) (int64, time.Duration) {
	ns := epoch.UnixNano() + int64(at)
	return ns / int64(per), time.Duration(ns % int64(per))
}

// parallel decides a concurrency rule: the most calls that ran at one moment. A call runs from its arrival up to, not including,
// its departure; one that ends when another begins does not overlap it. Jitter ends every call that much earlier, since its
// caller may have left before the API could see it.
func parallel(calls []span, r rule, jitter time.Duration) worst {
	type event struct {
		at    time.Duration
		delta int64
	}
	events := make([]event, 0, 2*len(calls))
	for _, c := range calls {
		events = append(events, event{c.from, 1}, event{max(c.to-jitter, c.from+1), -1})
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta))
	})
	var w worst
	var now int64
	for _, e := range events {
		now += e.delta
		if now > w.units {
			w.units, w.at = now, e.at
		}
	}
	w.exceeded = w.units > r.limit
	return w
}
