// Package wallclock computes when a cron expression is due in a time zone.
//
// robfig/cron parses the expression and finds the times that match it, on a clock that never shifts; this package maps those to
// real moments. There are two ways to do so, and the hour field selects one, as in cron daemons:
//
//   - An expression that names hours ("30 2 * * *", "0 8-18 * * *", @daily) means times of day. Each is due once, at the first
//     moment at which the clocks of the zone show it or have passed it: the first time, if they show it twice, and the end of the
//     gap, if they skip it. Times that fall into one gap are due together, as one run.
//   - An expression whose hour field begins with a star ("*/15 * * * *", "0 */2 * * *", @hourly) means real time. It is due at every
//     moment at which the clocks show a match: an hour that comes twice counts twice, and one that is skipped not at all.
//
// A [Window] differs from both: it is all minutes that match, as clocks show them.
//
// The zone data is that of the system if it has any, and otherwise that embedded in the program.
package wallclock

import (
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	day = 24 * time.Hour

	// reach is how far from UTC the clocks of a zone may be, with room: the farthest ever was 15:14 hours.
	reach = 26 * time.Hour

	// horizon is how far a run may be away: eight years, from one leap day to the next but for the century, with room.
	horizon = (8*366 + 2) * day
)

// Schedule is a cron expression in a time zone. It is safe for concurrent use.
type Schedule struct {
	expr     string
	spec     *cron.SpecSchedule // of naive times: see naive
	zone     *time.Location
	realTime bool // the hour field begins with a star

	// last says that the days of month have L. spec then has the days 28 to 31 for it, and days has those that were written
	// beside L.
	last bool
	days uint64
}

// Cron returns the expression, as it was written.
func (s *Schedule) Cron() string { return s.expr }

// Zone returns the name of the time zone, UTC where none was given.
func (s *Schedule) Zone() string { return s.zone.String() }

// String returns the expression and the time zone: 0 6 * * 1-5 in Europe/Berlin.
func (s *Schedule) String() string { return s.expr + " in " + s.Zone() }

// Location returns the time zone, in which Next and Prev answer.
func (s *Schedule) Location() *time.Location { return s.zone }

// Next returns the first run after t, not at it; the zero time if there is none within eight years. It takes microseconds.
func (s *Schedule) Next(t time.Time) time.Time {
	if s.realTime {
		return s.nextShown(t)
	}
	return s.nextReached(t)
}

// Prev returns the last run before t or at it; the zero time if there is none within eight years. It takes well below a
// millisecond.
func (s *Schedule) Prev(t time.Time) time.Time {
	var last time.Time
	back := time.Minute
	for {
		if last = s.Next(t.Add(-back)); !last.IsZero() && !last.After(t) {
			break
		}
		if back >= horizon {
			return time.Time{}
		}
		back = min(2*back, horizon)
	}
	// last is a run, and the wanted one is in [last, beyond).
	beyond := t.Add(1)
	for {
		next := s.Next(last)
		if next.IsZero() || next.After(t) {
			return last
		}
		last = next
		if middle := s.Next(last.Add(beyond.Sub(last) / 2)); !middle.IsZero() && !middle.After(t) {
			last = middle
		} else {
			beyond = last.Add(beyond.Sub(last)/2 + 1)
		}
	}
}

// Gap returns the shortest time between two runs, on a clock that never shifts: whole minutes. It looks at 28 years, in which
// every month begins on every weekday, or at the first 5000 runs, and takes some milliseconds.
func (s *Schedule) Gap() time.Duration {
	shortest, last := horizon, s.nextNaive(cycleStart)
	for runs := 0; runs < 5000 && last.Before(cycleEnd) && shortest > time.Minute; runs++ {
		next := s.nextNaive(last)
		shortest = min(shortest, next.Sub(last))
		last = next
	}
	return shortest
}

// cycleStart is the second before a leap year, and cycleEnd is 28 years later.
var (
	cycleStart = time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC)
	cycleEnd   = cycleStart.AddDate(28, 0, 0)
)

// naive returns what the clocks of a zone show at t, as if it were UTC: a time that can be counted with.
func naive(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(seconds(offset))
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// nextNaive returns the first naive time after n that matches, or the zero time. robfig/cron looks only five years ahead, and
// does not know L.
func (s *Schedule) nextNaive(n time.Time) time.Time {
	for {
		next := s.spec.Next(n)
		if next.IsZero() {
			next = s.spec.Next(time.Date(n.Year()+5, 12, 31, 23, 59, 59, 0, time.UTC))
		}
		if next.IsZero() || s.coversDay(next) {
			return next
		}
		n = time.Date(next.Year(), next.Month(), next.Day(), 23, 59, 59, 0, time.UTC)
	}
}

// nextReached is Next for times of day.
func (s *Schedule) nextReached(t time.Time) time.Time {
	n := naive(t.In(s.zone)) // it and those before it have been reached
	for {
		if n = s.nextNaive(n); n.IsZero() {
			return n
		}
		if at := s.reached(n); at.After(t) {
			return at
		}
	}
}

// reached returns the first moment at which the zone's clocks show n or more.
func (s *Schedule) reached(n time.Time) time.Time {
	t := n.Add(-reach).In(s.zone) // they showed less then, and at any time before
	for {
		_, offset := t.Zone()
		start, end := t.ZoneBounds()
		at := n.Add(-seconds(offset)).In(s.zone)
		switch {
		case at.Before(start):
			return start // skipped
		case end.IsZero() || at.Before(end):
			return at
		}
		t = end
	}
}

// nextShown is Next for real time.
func (s *Schedule) nextShown(t time.Time) time.Time {
	after := t.In(s.zone)
	for limit := t.Add(horizon); after.Before(limit); {
		_, offset := after.Zone()
		_, end := after.ZoneBounds()
		n := s.nextNaive(naive(after))
		if n.IsZero() {
			return n
		}
		at := n.Add(-seconds(offset)).In(s.zone)
		if end.IsZero() || at.Before(end) {
			return at
		}
		if shown := naive(end); s.nextNaive(shown.Add(-time.Nanosecond)).Equal(shown) {
			return end
		}
		after = end
	}
	return time.Time{}
}

// Lacking returns the months of the expression in which one of its days of month does not exist. February lacks the 29th. It
// returns none for days that are written with a star, or with days of the week beside them.
func (s *Schedule) Lacking() (months []time.Month) {
	parts := strings.Fields(s.expr)
	if len(parts) != len(fields) || strings.ContainsAny(parts[dayOfMonth], "*?") || s.spec.Dow&star == 0 {
		return nil
	}
	written := s.spec.Dom
	if s.last {
		written = s.days
	}
	const all = 1<<29 - 2 // the 1st to the 28th
	if written&all == all {
		return nil
	}
	for month := time.January; month <= time.December; month++ {
		length := time.Date(2001, month+1, 0, 0, 0, 0, 0, time.UTC).Day() // not a leap year
		if has(s.spec.Month, int(month)) && written>>(length+1)<<(length+1)&^star != 0 {
			months = append(months, month)
		}
	}
	return months
}
