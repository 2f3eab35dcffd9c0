package checker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// clock finds the periods of a calendar: robfig/cron says which wall-clock times
// match, on a clock that never shifts, and each is looked up in the zone here.
type clock struct {
	spec   cron.Schedule
	zone   *time.Location
	always bool // the hour field is a star: every moment that shows a time counts, not the first alone
}

func readClock(resets, timezone string) (*clock, error) {
	if strings.Contains(resets, "TZ=") || strings.HasPrefix(resets, "@every") {
		return nil, fmt.Errorf("resets: %q", resets)
	}
	zone, err := time.LoadLocation(timezone)
	if err != nil {
		return nil, fmt.Errorf("timezone: %w", err)
	}
	fields := strings.Fields(resets)
	spec, err := readSpec(resets, fields)
	if err != nil {
		return nil, fmt.Errorf("resets: %w", err)
	}
	always := resets == "@hourly" || len(fields) == 5 && strings.HasPrefix(fields[1], "*")
	return &clock{spec: spec, zone: zone, always: always}, nil
}

// readSpec reads an expression whose days of month may have L, which robfig/cron does not know.
func readSpec(resets string, fields []string) (cron.Schedule, error) {
	if len(fields) != 5 || !strings.Contains(","+fields[2]+",", ",L,") {
		return cron.ParseStandard(resets)
	}
	fields = slices.Clone(fields)
	days := strings.Split(fields[2], ",")
	fields[2] = "28-31"
	last, err := cron.ParseStandard(strings.Join(fields, " "))
	days = slices.DeleteFunc(days, func(day string) bool { return day == "L" })
	if err != nil || len(days) == 0 && fields[4] == "*" {
		return lastDays{last: last}, err
	}
	if fields[2] = strings.Join(days, ","); len(days) == 0 {
		fields[2] = "*" // and so the days of the week alone
	}
	others, err := cron.ParseStandard(strings.Join(fields, " "))
	return lastDays{last, others}, err
}

// lastDays is the runs of last on last days of months, and those of others, if any.
type lastDays struct{ last, others cron.Schedule }

func (l lastDays) Next(n time.Time) time.Time {
	at := l.last.Next(n)
	for !at.IsZero() && at.AddDate(0, 0, 1).Day() != 1 {
		at = l.last.Next(at)
	}
	if l.others == nil {
		return at
	}
	if other := l.others.Next(n); at.IsZero() || !other.IsZero() && other.Before(at) {
		return other
	}
	return at
}

// period returns when the period that holds a moment began and when it ends. It panics
// where none begins within a century, which no limits.yaml can say.
func (c *clock) period(at time.Time) (start, end time.Time) {
	for span := time.Minute; span < 100*366*24*time.Hour; span *= 8 {
		runs := c.runs(at.Add(-span), at.Add(span))
		i, exact := slices.BinarySearchFunc(runs, at, time.Time.Compare)
		if exact {
			i++
		}
		if i > 0 && i < len(runs) {
			return runs[i-1], runs[i]
		}
	}
	panic("checker: a calendar that never comes round")
}

// runs returns the moments at which a period begins between two, in order.
func (c *clock) runs(from, to time.Time) []time.Time {
	first, last := 26*time.Hour, -26*time.Hour // what the clocks are off UTC
	for _, at := range []time.Time{from.Add(last), from, to, to.Add(first)} {
		_, offset := at.In(c.zone).Zone()
		off := time.Duration(offset) * time.Second
		first, last = min(first, off), max(last, off)
	}
	var runs []time.Time
	end := to.UTC().Add(last)
	for n := c.spec.Next(from.UTC().Add(first - time.Second)); !n.IsZero() && !n.After(end); n = c.spec.Next(n) {
		for _, run := range c.moments(n) {
			if !run.Before(from) && !run.After(to) {
				runs = append(runs, run)
			}
		}
	}
	slices.SortFunc(runs, time.Time.Compare)
	return slices.CompactFunc(runs, time.Time.Equal)
}

// moments returns when the zone's clocks show a wall-clock time, given as if in UTC: once, never where they skip it, or several
// times. Unless all count it is the first of them, or the end of the gap.
func (c *clock) moments(wall time.Time) []time.Time {
	var shown []time.Time
	for probe := -26 * time.Hour; probe <= 26*time.Hour; probe += 13 * time.Hour {
		_, offset := wall.Add(probe).In(c.zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if _, there := at.In(c.zone).Zone(); there == offset {
			shown = append(shown, at)
		}
	}
	slices.SortFunc(shown, time.Time.Compare)
	shown = slices.CompactFunc(shown, time.Time.Equal)
	switch {
	case c.always:
		return shown
	case len(shown) > 0:
		return shown[:1]
	}
	_, before := wall.Add(-26 * time.Hour).In(c.zone).Zone()
	start, _ := wall.Add(-time.Duration(before) * time.Second).In(c.zone).ZoneBounds()
	return []time.Time{start}
}

// window returns the period of a call as fixed does: when it began, on the clock of the calls, and how long it is.
func (c *clock) window(at time.Duration, epoch time.Time) (start, length time.Duration) {
	from, to := c.period(epoch.Add(at))
	return from.Sub(epoch), to.Sub(from)
}
