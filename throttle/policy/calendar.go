package policy

import (
	"sync"
	"time"
)

// Schedule gives the moments at which the periods of a Calendar begin. wallclock.Parse makes one
// from a cron expression. It must be safe for concurrent use. Two Schedules with the same Cron and
// Zone are equal.
type Schedule interface {
	// Next returns the first beginning after a time, or the zero time if there is none within eight
	// years.
	Next(time.Time) time.Time
	// Prev returns the last beginning at or before a time, or the zero time if there was none within
	// eight years.
	Prev(time.Time) time.Time
	// Cron returns the expression, and Zone the name of its time zone, as in limits.yaml.
	Cron() string
	Zone() string
}

// Hours gives the minutes in which a rule applies. wallclock.ParseWindow makes one from a cron
// expression. It must be safe for concurrent use. Two Hours with the same Cron and Zone are equal.
type Hours interface {
	// Holds reports whether the minute of a time is one of them.
	Holds(time.Time) bool
	// Changes returns the first moment after a time at which they begin or end, or the zero time if
	// there is none within eight years.
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

// textOf returns the expression and the time zone, which identify a Schedule or Hours.
func textOf(e expression) [2]string { return [2]string{e.Cron(), e.Zone()} }

// calendar caches the periods of all rules with the same expression and time zone. It is safe for
// concurrent use.
type calendar struct {
	schedule Schedule

	mu   sync.Mutex
	last periods // the last result
}

// calendars caches calendars, maxCalendars at most. Searching for a period costs more than a
// decision.
var calendars struct {
	mu    sync.Mutex
	known map[[2]string]*calendar
}

const maxCalendars = 1000

// calendar returns the cached calendar of the rule.
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

// periods are the current period, which begins at from and ends at to, and its neighbours, in µs
// since the epoch.
type periods struct{ before, from, to, next, beyond int64 }

func (p periods) hold(at int64) bool { return p.from <= at && at < p.to }

// rare is the assumed distance of a boundary that is further away than a schedule searches.
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

// Periods is the current period of a Calendar, From to To, with the boundaries of its neighbours.
type Periods struct {
	Before   time.Time // when the previous period began
	From, To time.Time
	Next     time.Time // when the next period ends
	Beyond   time.Time // when the period after the next one ends
}

// PeriodsAt returns the periods of a Calendar around a time.
func (r Rule) PeriodsAt(at time.Time) Periods {
	p := r.calendar().around(at)
	return Periods{time.UnixMicro(p.before), time.UnixMicro(p.from), time.UnixMicro(p.to), time.UnixMicro(p.next), time.UnixMicro(p.beyond)}
}
