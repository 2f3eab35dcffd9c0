package checker

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// requests is the unit of a rule that names none.
const requests = "requests"

// readHours reads when a rule holds: like a calendar, but each minute that matches counts.
func readHours(active, timezone string) (*clock, error) {
	if len(strings.Fields(active)) != 5 {
		return nil, fmt.Errorf("active: %q", active)
	}
	return readClock(active, timezone)
}

// shows says whether the minute that the zone's clocks show at a moment matches.
func (c *clock) shows(at time.Time) bool {
	local := at.In(c.zone)
	minute := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
	return c.spec.Next(minute.Add(-time.Second)).Equal(minute)
}

// holds says whether a rule holds at a moment, and for some time before.
func (r rule) holds(at time.Time, before time.Duration) bool {
	if r.hours == nil {
		return true
	}
	for t := at.Add(-before); t.Before(at); t = t.Truncate(time.Minute).Add(time.Minute) {
		if !r.hours.shows(t) {
			return false
		}
	}
	return r.hours.shows(at)
}

// surely returns the calls that started in the rule's hours, however late they were seen.
func (g *group) surely(jitter time.Duration, epoch time.Time) []span {
	if g.rule.hours == nil || jitter == 0 {
		return g.calls
	}
	return slices.DeleteFunc(slices.Clone(g.calls), func(c span) bool { return !g.rule.holds(epoch.Add(c.from), jitter) })
}
