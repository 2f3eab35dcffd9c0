package policy

import (
	"sync"
	"time"
)

// Schedule gives the moments at which the periods of a Calendar begin. wallclock.Parse makes one from a cron expression. It must
// be safe for concurrent use. Two Schedules with the same Cron and Zone are equal.
type Schedule interface {
	// Next returns the first beginning after a time, or the zero time if there is none within eight years.
	Next(time.Time) time.Time
	// Prev returns the last beginning at or before a time, or the zero time if there was none within eight years.
	Prev(time.Time) time.Time
	// Cron returns the expression, and Zone the name of its time zone, as in limits.yaml.
	Cron() string
	Zone() string
}

// Hours gives the minutes in which a rule applies. wallclock.ParseWindow makes one from a cron expression. It must be safe for
// concurrent use. Two Hours with the same Cron and Zone are equal.
type Hours interface {
	// Holds reports whether the minute of a time is one of them.
	Holds(time.Time) bool
	// Changes returns the first moment after a time at which they begin or end, or the zero time if there is none within eight
	// years.
	Changes(time.Time) time.Time
	// Cron returns the expression, and Zone the name of its time zone, as in limits.yaml.
	Cron() string
	Zone() string
}

// expression is what a Schedule and Hours have in common.
type expression interface {
	Cron() string
	Zone() string
}

// interval is a time in which a result holds.
type interval interface{ has(at time.Time) bool }

// cache keeps the last result for each expression, since to find one costs more than a decision. It is safe for concurrent use.
type cache[T interval] struct {
	mu   sync.Mutex
	last map[[2]string]T // by the expression and the time zone; at most maxCached
}

const maxCached = 1000

func (c *cache[T]) at(at time.Time, of expression, find func() T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{of.Cron(), of.Zone()}
	if last, known := c.last[key]; known && last.has(at) {
		return last
	}
	if c.last == nil || len(c.last) >= maxCached {
		c.last = map[[2]string]T{}
	}
	c.last[key] = find()
	return c.last[key]
}

var (
	calendars cache[Periods]
	windows   cache[span]
)

// rare is the assumed distance of a boundary that is further away than a schedule searches.
const rare = 8 * 366 * day

// Periods is the current period of a Calendar, From to To, with the boundaries of its neighbours.
type Periods struct {
	Before   time.Time // when the previous period began
	From, To time.Time
	Next     time.Time // when the next period ends
}

func (p Periods) has(at time.Time) bool { return !at.Before(p.From) && at.Before(p.To) }

// PeriodsAt returns the periods of a Calendar around a time.
func (r Rule) PeriodsAt(at time.Time) Periods {
	return calendars.at(at, r.Resets, func() Periods {
		from, to := begins(r.Resets.Prev, at, -rare), begins(r.Resets.Next, at, rare)
		return Periods{Before: begins(r.Resets.Prev, from.Add(-time.Microsecond), -rare), From: from, To: to, Next: begins(r.Resets.Next, to, rare)}
	})
}

// begins returns the beginning of a period that search finds from a time on, one at the distance far if it finds none.
func begins(search func(time.Time) time.Time, from time.Time, far time.Duration) time.Time {
	at := search(from)
	if at.IsZero() {
		at = from.Add(far)
	}
	return time.UnixMicro(at.UnixMicro())
}

// span is a time in which hours neither begin nor end.
type span struct {
	from, until time.Time
	holds       bool
}

func (s span) has(at time.Time) bool { return !at.Before(s.from) && at.Before(s.until) }

// ActiveAt reports whether a rule with Active applies at a time, and the bounds of the interval in which the answer stays the
// same. from is the beginning of the time's minute or earlier.
func (r Rule) ActiveAt(at time.Time) (active bool, from, until time.Time) {
	s := windows.at(at, r.Active, func() span {
		return span{at.Truncate(time.Minute), begins(r.Active.Changes, at, rare), r.Active.Holds(at)}
	})
	return s.holds, s.from, s.until
}
