package policy

import (
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/wallclock"
)

// defaultTimezone is where a calendar resets unless its rule says otherwise.
const defaultTimezone = "UTC"

// calendar is when rules reset that have the same expression and time zone. It is
// safe for concurrent use.
type calendar struct {
	schedule *wallclock.Schedule

	mu   sync.Mutex
	last periods // those asked for last
}

// calendars are those that have been met, up to a bound: to read a time zone costs
// more than to decide.
var calendars struct {
	mu    sync.Mutex
	known map[[2]string]*calendar
}

const maxCalendars = 1000

// calendarOf returns the calendar of a cron expression in a time zone. The error is
// wallclock's.
func calendarOf(resets, timezone string) (*calendar, error) {
	calendars.mu.Lock()
	defer calendars.mu.Unlock()
	key := [2]string{resets, timezone}
	if c := calendars.known[key]; c != nil {
		return c, nil
	}
	schedule, err := wallclock.Parse(resets, timezone)
	if err != nil {
		return nil, err
	}
	if calendars.known == nil || len(calendars.known) >= maxCalendars {
		calendars.known = map[[2]string]*calendar{}
	}
	c := &calendar{schedule: schedule}
	calendars.known[key] = c
	return c, nil
}

// calendar returns the rule's own. A Policy has read it before.
func (r Rule) calendar() *calendar {
	c, err := calendarOf(r.Resets, r.Timezone)
	if err != nil {
		panic("throttle: a calendar that no policy has checked: " + err.Error())
	}
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

// Periods are the period of a Calendar at hand, From to To, and its neighbours.
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
