package policy

import (
	"sync"
	"time"
)

// Schedule is the moments at which the periods of a Calendar begin; wallclock.Parse makes one of a
// cron expression. It must be safe for concurrent use. Two with the same Cron and Zone are equal.
type Schedule interface {
	// Next returns the first beginning after a time, the zero time where there is none within eight years.
	Next(time.Time) time.Time
	// Prev returns the last beginning before a time or at it, the zero time where there was none in eight years.
	Prev(time.Time) time.Time
	// Cron is the expression, and Zone the name of its time zone, as limits.yaml has them.
	Cron() string
	Zone() string
}

// Hours is the minutes in which a rule applies; wallclock.ParseWindow makes one of a cron expression.
// It must be safe for concurrent use. Two with the same Cron and Zone are equal.
type Hours interface {
	// Holds reports whether the minute at a time is one of them.
	Holds(time.Time) bool
	// Changes returns the first moment after a time at which they begin or end, the zero time where there is none within
	// eight years.
	Changes(time.Time) time.Time
	// Cron is the expression, and Zone the name of its time zone, as limits.yaml has them.
	Cron() string
	Zone() string
}

// expression is what a Schedule and Hours have in common.
type expression interface {
	Cron() string
	Zone() string
}

// textOf is the expression and the time zone by which a Schedule or Hours are known.
func textOf(e expression) [2]string { return [2]string{e.Cron(), e.Zone()} }

// calendar is when rules reset that have the same expression and time zone. It is
// safe for concurrent use.
type calendar struct {
	schedule Schedule

	mu   sync.Mutex
	last periods // those asked for last
}

// calendars are those that have been met, up to a bound: to look for a period
// costs more than to decide.
var calendars struct {
	mu    sync.Mutex
	known map[[2]string]*calendar
}

const maxCalendars = 1000

// calendar returns the rule's own.
func (r Rule) calendar() *calendar {
	key := textOf(r.Resets)
	calendars.mu.Lock()
	defer calendars.mu.Unlock()
	if c := calendars.known[key]; c != nil {
		return c
	}
	if calendars.known == nil || len(calendars.known) >= maxCalendars {
		calendars.known = map[[2]string]*calendar{}
	}
	c := &calendar{schedule: r.Resets}
	calendars.known[key] = c
	return c
}

// periods are the period at hand, which begins at from and is over at to, and its
// neighbours, in µs since the epoch.
type periods struct{ before, from, to, next, beyond int64 }

func (p periods) hold(at int64) bool { return p.from <= at && at < p.to }

// rare stands for a boundary that is further away than a schedule looks.
const rare = 8 * 366 * day

// around returns the periods around a moment.
func (c *calendar) around(at time.Time) periods {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.hold(at.UnixMicro()) {
		return c.last
	}
	from := c.prev(at)
	to := c.next(at)
	next := c.next(to)
	c.last = periods{
		before: c.prev(from.Add(-time.Microsecond)).UnixMicro(), from: from.UnixMicro(),
		to: to.UnixMicro(), next: next.UnixMicro(), beyond: c.next(next).UnixMicro(),
	}
	return c.last
}

func (c *calendar) prev(at time.Time) time.Time {
	if run := c.schedule.Prev(at); !run.IsZero() {
		return run
	}
	return at.Add(-rare)
}

func (c *calendar) next(at time.Time) time.Time {
	if run := c.schedule.Next(at); !run.IsZero() {
		return run
	}
	return at.Add(rare)
}

// Periods are the current period of a Calendar, From to To, and its neighbours.
type Periods struct {
	Before   time.Time // when the one before began
	From, To time.Time
	Next     time.Time // when the next one ends
	Beyond   time.Time // and the one after that
}

// PeriodsAt returns the periods of a Calendar around a time.
func (r Rule) PeriodsAt(at time.Time) Periods {
	p := r.calendar().around(at)
	return Periods{time.UnixMicro(p.before), time.UnixMicro(p.from), time.UnixMicro(p.to), time.UnixMicro(p.next), time.UnixMicro(p.beyond)}
}
