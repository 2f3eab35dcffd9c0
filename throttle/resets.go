package throttle

import (
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// resetTimes are when the periods of a calendar begin after the one at hand, looked for as far as they are asked for. Not safe for
// concurrent use.
type resetTimes struct {
	of    policy.Schedule
	at    time.Time
	known []time.Duration // from at
}

// maxResets is how many beginnings are looked for. Later periods are taken to be as long as the last that was found.
const maxResets = 10_000

// begin returns how long it is from at until the n-th later period begins; Never if a Duration is too short for it. n is 1 or more.
func (r *resetTimes) begin(n int64) time.Duration {
	for int64(len(r.known)) < min(n, maxResets) {
		from := r.at
		if len(r.known) > 0 {
			from = from.Add(r.known[len(r.known)-1])
		}
		next := r.of.Next(from)
		if next.IsZero() {
			return Never
		}
		r.known = append(r.known, next.Sub(r.at))
	}
	if n <= maxResets {
		return r.known[n-1]
	}
	last := r.known[maxResets-1]
	length, more := last-r.known[maxResets-2], n-maxResets
	if more > int64((Never-last)/length) {
		return Never
	}
	return last + time.Duration(more)*length
}

// realStart moves an expected start to when a period of the calendar really begins. Scripts know when the next two end, and take those after
// them to be as long as the second: months are not. i is the rule that binds the start, or -1 if that is not known: then a start that is
// exactly so many periods away is taken for the calendar's.
func (p *compiledScope) realStart(i int, at time.Time, in time.Duration) time.Duration {
	if in == Never {
		return in
	}
	if i >= 0 {
		in, _ = realStart(p.bounds[i].Rule, at, in)
		return in
	}
	for _, b := range p.bounds {
		if b.Rule.Spread {
			continue
		}
		if begins, is := realStart(b.Rule, at, in); is {
			return begins
		}
	}
	return in
}

// realStart is that of one rule. is is false for a start that is not one of a later period of the rule.
func realStart(r policy.Rule, at time.Time, in time.Duration) (begins time.Duration, is bool) {
	if r.Algorithm != policy.Calendar || r.Resets == nil {
		return in, false
	}
	of, start := periodsOf(r, at), at.UnixMicro()+in.Microseconds()
	length := of.next - of.to
	if start < of.next || length <= 0 {
		return in, false
	}
	periods, rest := (start-of.next)/length, (start-of.next)%length
	if rest != 0 && !r.Spread {
		return in, false
	}
	const nextOfNext = 2
	times := resetTimes{of: r.Resets, at: at}
	begins = times.begin(periods + nextOfNext)
	if rest == 0 || begins == Never {
		return begins, true
	}
	ends := times.begin(periods + nextOfNext + 1)
	if ends == Never {
		return Never, true
	}
	return begins + time.Duration(float64(ends-begins)*float64(rest)/float64(length)), true
}
