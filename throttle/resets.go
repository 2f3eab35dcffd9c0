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
