package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

func when(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	noError(t, err)
	return at
}

func (b *bench) atTime(text string) {
	b.t.Helper()
	b.now.Store(when(b.t, text).UnixMicro())
}

// resetAt is a rule of one unit in each period.
func resetAt(resets, zone string) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse(resets, zone)}
}

func daily(limit int64, zone string) policy.Rule {
	r := resetAt("0 0 * * *", zone)
	r.Limit = limit
	return r
}

// "Calendar admits limit units in each period": days of 23 and 25 hours, months, leap
// days. A denial waits for the end of the period to the microsecond.
func TestCalendarSteps(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Duration { return when(t, text).Sub(time.UnixMicro(epoch)) }
	testSteps(t, map[string]algorithm{
		"a day": {daily(2, "America/Los_Angeles"), []step{
			0: {at("2026-01-10T07:59:59.999999Z"), 2, allow(0, time.Microsecond)},
			1: {at("2026-01-10T07:59:59.999999Z"), 1, deny(0, time.Microsecond, time.Microsecond)},
			2: {at("2026-01-10T08:00:00Z"), 1, allow(1, 24*hour)},
			3: {at("2026-01-10T20:00:00Z"), 2, deny(1, 12*hour, 12*hour)},
		}},
		"a day of 23 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {at("2026-03-08T08:00:00Z"), 1, allow(0, 23*hour)},
			1: {at("2026-03-08T10:00:00Z"), 1, deny(0, 21*hour, 21*hour)}, // clocks go from 2:00 to 3:00
			2: {at("2026-03-09T07:00:00Z"), 1, allow(0, 24*hour)},
		}},
		"a day of 25 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {at("2026-11-01T07:00:00Z"), 1, allow(0, 25*hour)},
			1: {at("2026-11-02T07:00:00Z"), 1, deny(0, hour, hour)},
			2: {at("2026-11-02T08:00:00Z"), 1, allow(0, 24*hour)},
		}},
		"months": {resetAt("0 0 1 * *", "America/Los_Angeles"), []step{
			0: {at("2026-02-01T08:00:00Z"), 1, allow(0, 28*oneDay)},
			1: {at("2026-03-01T08:00:00Z"), 1, allow(0, 31*oneDay-hour)},
			2: {at("2026-04-01T06:59:59Z"), 1, deny(0, sec, sec)},
		}},
		"leap days": {resetAt("0 0 29 2 *", "UTC"), []step{
			0: {at("2028-02-29T00:00:00Z"), 1, allow(0, (4*365+1)*oneDay)},
			1: {at("2096-02-29T00:00:00Z"), 1, allow(0, 8*365*oneDay+oneDay)}, // 2100 is none
		}},
		"limit 0 suspends": {daily(0, "UTC"), []step{{at("2026-01-10T00:00:00Z"), 1, deny(0, Never, 0)}}},
	})
}

// "Boundaries that change": units charged since the new period began stay spent.
func TestCalendarChanged(t *testing.T) {
	t.Parallel()
	type step struct {
		at      string
		changed bool // the rule
		cost    int64
		want    int64 // units that remain, or below zero seconds of a wait
	}
	with := func(r policy.Rule, rollover int64, spread bool) policy.Rule {
		r.Rollover, r.Spread = rollover, spread
		return r
	}
	utc, pacific, month := daily(10, "UTC"), daily(10, "America/Los_Angeles"), resetAt("@monthly", "UTC")
	month.Limit = 10
	for name, test := range map[string]struct {
		before, after policy.Rule
		steps         []step
	}{
		"what was spent since the new period began": {utc, pacific, []step{
			{"2026-01-10T07:00:00Z", false, 4, 6}, // the 9th in California
			{"2026-01-10T07:30:00Z", true, 1, 5}, {"2026-01-10T08:00:00Z", true, 1, 9},
		}},
		"what may have been spent since, of which the state cannot tell four from two": {utc, pacific, []step{
			{"2026-01-10T07:00:00Z", false, 4, 6}, {"2026-01-10T09:00:00Z", false, 2, 4},
			{"2026-01-10T09:00:00Z", true, 1, 3}, {"2026-01-11T07:59:59Z", true, 4, -1},
		}},
		"a shorter period":                      {month, utc, []step{{"2026-01-10T12:00:00Z", false, 9, 1}, {"2026-01-10T12:00:00Z", true, 2, -12 * 3600}}},
		"a pace of months is over with the day": {with(month, 0, true), with(utc, 0, true), []step{{"2026-01-10T12:00:00Z", false, 1, 9}, {"2026-01-10T12:00:00Z", true, 1, -12 * 3600}}},
		"no pace any more":                      {with(month, 0, true), month, []step{{"2026-01-10T12:00:00Z", false, 1, 9}, {"2026-01-10T12:00:00Z", true, 1, 8}}},
		"roll-over from where the zones differ": {with(pacific, 5, false), with(utc, 5, false), []step{{"2026-01-10T12:00:00Z", false, 7, 3}, {"2026-01-11T00:00:00Z", true, 1, 12}}},
		"roll-over is switched off": {with(pacific, 5, false), pacific, []step{
			{"2026-01-10T12:00:00Z", false, 7, 3}, {"2026-01-11T12:00:00Z", false, 1, 12}, {"2026-01-11T12:00:00Z", true, 1, 8},
		}},
	} {
		onBothIn(t, name, Config{}, policyOf(t, test.before), func(b *bench) {
			after := b.under(test.after)
			for i, s := range test.steps {
				b.atTime(s.at)
				asked := map[bool]*bench{false: b, true: after}[s.changed]
				d := asked.decide(Request{Scope: "p/x", Cost: s.cost})
				if got := d.Rules[0].Remaining; d.Allowed != (s.want >= 0) || d.Allowed && got != s.want || !d.Allowed && d.RetryAfter != time.Duration(-s.want)*sec {
					b.t.Errorf("step %d: want %d, got %+v", i, s.want, d)
				}
			}
		})
	}
}
