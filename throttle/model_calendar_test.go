package throttle

import (
	"fmt"
	"slices"

	"github.com/headway-go/headway/throttle/policy"
)

// The model of calendars: minutes, by arithmetic alone. It knows no cron and no zones:
// these are the calendars of the histories, each with how many minutes a period has
// and in which of them it begins, from the epoch on.
var modelCalendars = []struct {
	resets, timezone string
	minutes, phase   int64
}{
	{"* * * * *", "UTC", 1, 0},
	{"*/2 * * * *", "UTC", 2, 0},
	{"1-59/2 * * * *", "UTC", 2, 1},
	{"1-59/2 * * * *", "Asia/Kathmandu", 2, 0}, // 5:45 ahead
	{"*/3 * * * *", "UTC", 3, 0},
}

const minuteMicros = 60_000_000

// span returns how long a period of a calendar is, and which one a moment is in.
func spanOf(r policy.Rule, byClock int64) (length, index int64) {
	for _, c := range modelCalendars {
		if r.Resets.Cron() == c.resets && r.Resets.Zone() == c.timezone {
			length = c.minutes * minuteMicros
			return length, (byClock - c.phase*minuteMicros) / length
		}
	}
	panic("the model has no such calendar: " + r.Resets.Cron())
}

// begins returns when a period begins.
func beginsAt(r policy.Rule, index int64) int64 {
	length, _ := spanOf(r, 0)
	at := index * length
	for _, i := spanOf(r, at); i < index; _, i = spanOf(r, at) {
		at += minuteMicros
	}
	return at
}

func (l *ledger) inPeriod(index int64, pass int) (units int64) {
	for _, c := range l.charges {
		if _, i := spanOf(l.rule, c.byClock); i == index && c.pass == pass {
			units += c.units
		}
	}
	return units
}

// rolled returns what has been rolled over into a period, as long as the rule's state
// knows of those before.
func (l *ledger) rolled(index int64, pass int) int64 {
	latest := int64(-1)
	for i := range l.touched {
		if i < index {
			latest = max(latest, i)
		}
	}
	if latest < 0 {
		return 0
	}
	over := min(l.rule.Rollover, max(0, l.rule.Limit+l.rolled(latest, pass)-l.inPeriod(latest, pass)))
	if latest < index-1 { // one passed without a unit, or several, which count as one
		over = min(l.rule.Rollover, l.rule.Limit+over)
	}
	return over
}

// touch notes that periods have a state: that of a start, and the one at hand.
func (l *ledger) touch(c charge, now int64) {
	if l.touched == nil {
		l.touched = map[int64]bool{}
	}
	_, at := spanOf(l.rule, c.byClock)
	_, here := spanOf(l.rule, now)
	l.touched[at], l.touched[here] = true, true
}

// expired: the state is gone, and what it knew of periods that have ended, whatever
// the clock does then. One that was written under other boundaries may go before the
// period that it counts in by now.
func (l *ledger) expired(now int64, changed bool) {
	l.touched, l.pacedIn = nil, -1
	if l.rule.Algorithm != policy.Calendar {
		return
	}
	l.charges = slices.DeleteFunc(l.charges, func(c charge) bool {
		_, index := spanOf(l.rule, c.byClock)
		return changed || beginsAt(l.rule, index+1) <= now
	})
}

// dropLate sees what the state knows of a grant that is given back: the period at hand
// and the next, or the one before where the next has no units yet. It knows of the
// period at hand from then on.
func (l *ledger) dropLate(id string, now int64) {
	_, here := spanOf(l.rule, now)
	for _, c := range l.charges {
		if c.id != id || l.touched == nil {
			continue
		}
		_, index := spanOf(l.rule, c.byClock)
		if index >= here || index == here-1 && !l.touched[here+1] {
			l.touched[here] = true
		} else if l.rule.Rollover > 0 {
			l.inexact = true
		}
	}
}

// calendarFault: in the period of c, at most limit and what has been rolled over; at
// its pace.
func (l *ledger) calendarFault(c charge, u, now int64) string {
	_, index := spanOf(l.rule, c.byClock)
	most := l.rule.Limit + l.rule.Rollover
	if l.exactly(u, now) {
		most = l.rule.Limit + l.rolled(index, c.pass)
	}
	if units := l.inPeriod(index, c.pass); units > most {
		return fmt.Sprintf("%d units in the period of %d, of %d", units, c.byClock, most)
	}
	if _, late := spanOf(l.rule, c.byClock+l.rule.Margin.Microseconds()); late != index {
		return fmt.Sprintf("started at %d, it may arrive in the next period", c.byClock)
	}
	if l.rule.Spread && l.exactly(u, now) && c.byClock < l.paced && index == l.pacedIn {
		return fmt.Sprintf("started at %d, before its pace allows it at %d", c.byClock, l.paced)
	}
	return ""
}

// lengthened says that of a state nothing but how long it lasts is another: a latest period that
// stood in two of a calendar's since it was changed is wholly of the later one when that begins.
func (l *ledger) lengthened(before, after string) bool {
	const head = 2 * (1 + 7)
	return l.changed && l.rule.Rollover > 0 && len(before) > head && len(after) > head && after[head:] == before[head:] && after[:head] > before[:head]
}

// exactly says that nothing makes a calendar remember less than all, or more.
func (l *ledger) exactly(u, now int64) bool { return !l.inexact && u == now }

// pace notes when the next unit of a spread period may start. Nothing is rolled over
// into one that has not begun.
func (l *ledger) pace(c charge, now int64) {
	_, index := spanOf(l.rule, c.byClock)
	left := l.rule.Limit - l.inPeriod(index, c.pass) + c.units
	if _, here := spanOf(l.rule, now); here == index {
		left += l.rolled(index, c.pass)
	}
	left = max(left, c.units)
	rest := beginsAt(l.rule, index+1) - l.rule.Margin.Microseconds() - c.byClock
	l.paced, l.pacedIn = c.byClock+(rest*c.units+left-1)/left, index
}

// opens returns when cost may start at the earliest, where that is exact.
func (l *ledger) opens(cost, u, now int64) int64 {
	_, index := spanOf(l.rule, now)
	end, at := beginsAt(l.rule, index+1), now
	if l.rule.Spread && l.pacedIn == index {
		at = max(at, l.paced)
	}
	if at >= end || l.inPeriod(index, l.pass)+cost > l.rule.Limit+l.rolled(index, l.pass) {
		at = end
	}
	return u + at - now
}
