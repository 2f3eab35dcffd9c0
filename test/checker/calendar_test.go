package checker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle/wallclock"
)

// calledAt is a log of calls of one unit, with the moment from which it counts.
func calledAt(t *testing.T, times ...string) (calls []countapi.Call, epoch time.Time) {
	t.Helper()
	var since []time.Duration
	for i, text := range times {
		at, err := time.Parse(time.RFC3339Nano, text)
		must(t, err)
		if i == 0 {
			epoch = at
		}
		since = append(since, at.Sub(epoch))
	}
	return at(since...), epoch
}

// judged is the row of a rule for calls at some times. It holds what the report says as a whole against whether the rule is exceeded.
func judged(t *testing.T, rule string, jitter time.Duration, exceeded bool, times ...string) Row {
	t.Helper()
	calls, epoch := calledAt(t, times...)
	r, err := Check(Input{Limits: one(t, rule), Calls: calls, Jitter: jitter, Epoch: epoch})
	must(t, err)
	if r.Rows[0].Exceeded != exceeded || (len(r.Violations()) > 0) != exceeded {
		t.Errorf("exceeded %t, want %t: %+v, violations %q", r.Rows[0].Exceeded, exceeded, r.Rows[0], r.Violations())
	}
	return r.Rows[0]
}

// Each violation is planted beside a log that is exactly at the limit.
func TestCalendars(t *testing.T) {
	t.Parallel()
	const (
		pacific = `algorithm: calendar, limit: 2, resets: "0 0 * * *", timezone: America/Los_Angeles`
		lastDay = `algorithm: calendar, limit: 1, resets: "0 0 L * *"`
		month   = `algorithm: calendar, limit: 1, resets: "@monthly", spread: true`
		berlin  = `algorithm: calendar, limit: 1, resets: "30 2 * * *", timezone: Europe/Berlin`
		rolling = `algorithm: calendar, limit: 2, resets: "0 0 * * *", rollover: 1`
	)
	tests := map[string]struct {
		rule     string
		times    []string
		jitter   time.Duration
		worst    int64
		exceeded bool
	}{
		"two in a day":                  {pacific, []string{"2026-01-10T08:00:00Z", "2026-01-11T07:59:59Z", "2026-01-11T08:00:00Z", "2026-01-11T08:00:00Z"}, 0, 2, false},
		"three in a day":                {pacific, []string{"2026-01-10T08:00:00Z", "2026-01-11T07:59:59Z", "2026-01-11T07:59:59.999999999Z"}, 0, 3, true},
		"a day of 23 hours":             {pacific, []string{"2026-03-08T08:00:00Z", "2026-03-09T06:59:59Z", "2026-03-09T07:00:00Z"}, 0, 2, false},
		"a day of 25 hours":             {pacific, []string{"2026-11-01T07:00:00Z", "2026-11-01T07:00:00Z", "2026-11-02T07:59:59Z"}, 0, 3, true},
		"a month":                       {month, []string{"2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"}, 0, 1, false},
		"a leap day":                    {month, []string{"2028-02-01T00:00:00Z", "2028-02-29T23:59:59Z"}, 0, 2, true},
		"a last day":                    {lastDay, []string{"2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-30T23:59:59Z"}, 0, 2, true},
		"each last day":                 {lastDay, []string{"2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2028-02-29T00:00:00Z"}, 0, 1, false},
		"what clocks skip":              {berlin, []string{"2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z"}, 0, 1, false},
		"what clocks show twice":        {berlin, []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"}, 0, 2, true},
		"a bit late":                    {pacific, []string{"2026-01-11T07:59:59Z", "2026-01-11T08:00:00.001Z", "2026-01-11T09:00:00Z", "2026-01-11T09:00:00Z"}, 2 * time.Millisecond, 3, false},
		"too late":                      {pacific, []string{"2026-01-11T07:59:59Z", "2026-01-11T08:00:00.002Z", "2026-01-11T09:00:00Z", "2026-01-11T09:00:00Z"}, 2 * time.Millisecond, 3, true},
		"left over":                     {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z"}, 0, 2, false},
		"nothing left over":             {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-10T00:00:00Z", "2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z"}, 0, 3, true},
		"no more left over than may be": {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z"}, 0, 3, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if row := judged(t, tt.rule, tt.jitter, tt.exceeded, tt.times...); row.Worst != tt.worst {
				t.Errorf("worst %d, want %d", row.Worst, tt.worst)
			}
		})
	}
}

// The two who read calendars, the judge and what it judges, find the same periods.
func TestPeriodsAgree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	zones := []string{
		"UTC", "America/Los_Angeles", "Europe/Berlin", "Europe/Dublin", "Africa/Casablanca", "Asia/Kathmandu", "Australia/Lord_Howe",
		"Pacific/Apia", "America/Sao_Paulo", "America/Santiago", "Asia/Beirut", "Antarctica/Troll", "America/Havana",
	}
	for _, resets := range []string{
		"0 0 * * *", "30 2 * * *", "0 0 1 * *", "15 1,2,3 * * *", "0 * * * *", "30 */2 * * *", "*/20 * * * *", "@weekly", "0 9-17/4 * * mon-fri", "0 0 29 2 *",
	} {
		for _, zone := range zones {
			ours, err := readClock(resets, zone)
			must(t, err)
			theirs, err := wallclock.Parse(resets, zone)
			must(t, err)
			for range 6 {
				when := time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rnd.Int64N(int64(30 * 365 * 24 * time.Hour))))
				if loc, err := time.LoadLocation(zone); err == nil && rnd.IntN(2) == 0 { // near a shift, where there is one
					if _, shift := when.In(loc).ZoneBounds(); !shift.IsZero() {
						when = shift.Add(time.Duration(rnd.Int64N(int64(6*time.Hour))) - 3*time.Hour)
					}
				}
				from, to := ours.period(when)
				if prev, next := theirs.Prev(when), theirs.Next(when); !from.Equal(prev) || !to.Equal(next) {
					t.Errorf("seed %d: %s in %s at %v: %v to %v; wallclock has %v to %v", seed, resets, zone, when, from.UTC(), to.UTC(), prev.UTC(), next.UTC())
				}
			}
		}
	}
}
