package wallclock

import (
	"errors"
	"math/bits"
	"strings"
	"time"
)

// Window is the minutes that match a cron expression in a time zone, as the zone's clocks show them: what clocks skip is not in
// it, and what they show twice is in it twice. It is safe for concurrent use.
type Window Schedule

// ParseWindow reads a cron expression of five fields: "* 8-19 * * 1-5" is from 8:00 to 19:59 on weekdays. zone is as [Zone] takes
// it. An expression that no minute matches, or every minute, is refused. The error is an *Error. Recent expressions are cached,
// as those of Parse.
func ParseWindow(expr, zone string) (*Window, error) {
	const write = `write five fields, such as "* 8-19 * * 1-5"`
	if text := strings.TrimSpace(expr); strings.HasPrefix(text, "@") {
		return nil, &Error{Expr: expr, Reason: "stands for single moments; " + write}
	}
	s, err := Parse(expr, zone)
	var fault *Error
	if errors.As(err, &fault) {
		fault.Reason = strings.ReplaceAll(fault.Reason, writeFields, write)
	}
	if err != nil {
		return nil, err
	}
	if s.nextOff(cycleStart).IsZero() {
		return nil, &Error{Expr: expr, Reason: "matches every minute; remove it"}
	}
	return (*Window)(s), nil
}

// MustParseWindow is ParseWindow for constant expressions: it panics where ParseWindow returns an error.
func MustParseWindow(expr, zone string) *Window { return must(ParseWindow(expr, zone)) }

// Cron returns the expression, as it was written.
func (w *Window) Cron() string { return w.expr }

// Zone returns the name of the time zone, UTC where none was given.
func (w *Window) Zone() string { return w.zone.String() }

// String returns the expression and the time zone: * 8-19 * * 1-5 in Europe/Berlin.
func (w *Window) String() string { return (*Schedule)(w).String() }

// Holds reports whether the minute at t is in the window.
func (w *Window) Holds(t time.Time) bool {
	return (*Schedule)(w).covers(naive(t.In(w.zone)))
}

// Changes returns the first moment after t at which the window begins or ends; the zero time if there is none within eight years.
// It takes well below a millisecond.
func (w *Window) Changes(t time.Time) time.Time {
	s, at := (*Schedule)(w), t.In(w.zone)
	held := s.covers(naive(at))
	for limit := t.Add(horizon); at.Before(limit); {
		_, offset := at.Zone()
		_, end := at.ZoneBounds()
		n := s.nextNaive(naive(at))
		if held {
			n = s.nextOff(naive(at))
		}
		change := n.Add(-seconds(offset)).In(s.zone)
		switch {
		case !n.IsZero() && (end.IsZero() || change.Before(end)):
			return change
		case end.IsZero():
			return time.Time{}
		case s.covers(naive(end)) != held:
			return end
		}
		at = end
	}
	return time.Time{}
}

// covers reports whether the minute of a naive time is one of the expression's.
func (s *Schedule) covers(n time.Time) bool {
	return s.coversDay(n) && has(s.spec.Hour, n.Hour()) && has(s.spec.Minute, n.Minute())
}

// star marks a field of robfig/cron that was written as a star.
const star = 1 << 63

func (s *Schedule) coversDay(n time.Time) bool {
	of := s.spec
	day, weekday := has(of.Dom, n.Day()), has(of.Dow, int(n.Weekday()))
	if s.last {
		day = has(s.days, n.Day()) || n.AddDate(0, 0, 1).Day() == 1
	}
	if !has(of.Month, int(n.Month())) {
		return false
	}
	if (of.Dom|of.Dow)&star != 0 {
		return day && weekday
	}
	return day || weekday
}

func has(field uint64, n int) bool { return field>>n&1 == 1 }

// nextOff returns the first naive minute after that of n which does not match, or the zero time. It skips whole days and hours
// that match.
func (s *Schedule) nextOff(n time.Time) time.Time {
	minutes := bits.OnesCount64(s.spec.Minute&^star) == 60
	hours := minutes && bits.OnesCount64(s.spec.Hour&^star) == 24
	n = n.Truncate(time.Minute).Add(time.Minute)
	for limit := n.Add(horizon); n.Before(limit); {
		switch {
		case !s.covers(n):
			return n
		case hours:
			n = n.Truncate(day).Add(day)
		case minutes:
			n = n.Truncate(time.Hour).Add(time.Hour)
		default:
			n = n.Add(time.Minute)
		}
	}
	return time.Time{}
}
