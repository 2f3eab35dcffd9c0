package checker

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle/wallclock"
)

// Each violation is planted beside a log that is exactly at the limit. How clocks shift is TestPeriodsAgree's and TestHoursAgree's.
func TestCalendarsAndHours(t *testing.T) {
	t.Parallel()
	const (
		pacific = `algorithm: calendar, limit: 2, resets: "0 0 * * *", timezone: America/Los_Angeles`
		lastDay = `algorithm: calendar, limit: 1, resets: "0 0 L * *"`
		month   = `algorithm: calendar, limit: 1, resets: "@monthly", spread: true`
		rolling = `algorithm: calendar, limit: 2, resets: "0 0 * * *", rollover: 1`
		newYork = `, active: "* 8-19 * * 1-5", timezone: America/New_York` // 12:00 to 24:00 UTC in summer
		sliding = "algorithm: sliding-window, limit: 1, per: 1h" + newYork
		places  = "algorithm: concurrency, limit: 1" + newYork
		closed  = "algorithm: sliding-window, limit: 0, per: 1s" + newYork
	)
	for name, tt := range map[string]struct {
		rule     string
		times    []string
		jitter   time.Duration
		worst    int64
		exceeded bool
	}{
		"two in a day":                  {pacific, []string{"2026-01-10T08:00:00Z", "2026-01-11T07:59:59Z", "2026-01-11T08:00:00Z", "2026-01-11T08:00:00Z"}, 0, 2, false},
		"three in a day":                {pacific, []string{"2026-01-10T08:00:00Z", "2026-01-11T07:59:59Z", "2026-01-11T07:59:59.999999999Z"}, 0, 3, true},
		"a month":                       {month, []string{"2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"}, 0, 1, false},
		"a last day":                    {lastDay, []string{"2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-30T23:59:59Z"}, 0, 2, true},
		"each last day":                 {lastDay, []string{"2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2028-02-29T00:00:00Z"}, 0, 1, false},
		"a bit late":                    {pacific, []string{"2026-01-11T07:59:59Z", "2026-01-11T08:00:00.001Z", "2026-01-11T09:00:00Z", "2026-01-11T09:00:00Z"}, 2 * time.Millisecond, 3, false},
		"too late":                      {pacific, []string{"2026-01-11T07:59:59Z", "2026-01-11T08:00:00.002Z", "2026-01-11T09:00:00Z", "2026-01-11T09:00:00Z"}, 2 * time.Millisecond, 3, true},
		"left over":                     {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z"}, 0, 2, false},
		"nothing left over":             {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-10T00:00:00Z", "2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-11T00:00:00Z"}, 0, 3, true},
		"no more left over than may be": {rolling, []string{"2026-01-10T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z", "2026-01-12T00:00:00Z"}, 0, 3, true},
		"before they begin":             {sliding, []string{"2026-07-01T11:59:58Z", "2026-07-01T11:59:59.999999999Z", "2026-07-01T12:00:00Z"}, 0, 1, false},
		"when they have begun":          {sliding, []string{"2026-07-01T12:00:00Z", "2026-07-01T12:59:59.999999999Z"}, 0, 2, true},
		"when they are over":            {sliding, []string{"2026-07-01T23:59:59.999999999Z", "2026-07-02T00:00:00Z", "2026-07-02T00:00:00Z"}, 0, 1, false},
		"before they are over":          {sliding, []string{"2026-07-01T23:59:59.999999999Z", "2026-07-01T23:59:59Z"}, 0, 2, true},
		"it may have started before":    {sliding, []string{"2026-07-01T12:00:00.009Z", "2026-07-01T12:30:00Z"}, 10 * time.Millisecond, 2, false},
		"it has not started before":     {sliding, []string{"2026-07-01T12:00:00.010Z", "2026-07-01T12:30:00Z"}, 10 * time.Millisecond, 2, true},
		"places outside are nobody's":   {places, []string{"2026-07-01T11:59:59.999Z", "2026-07-01T12:00:00Z"}, 0, 1, false},
		"places inside are counted":     {places, []string{"2026-07-01T12:00:00Z", "2026-07-01T12:00:00Z"}, 0, 2, true},
		"nothing at all":                {closed, []string{"2026-07-01T12:00:00Z"}, 0, 1, true},
		"all that one likes":            {closed, []string{"2026-07-01T11:00:00Z"}, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var since []time.Duration
			for _, text := range tt.times {
				at, err := time.Parse(time.RFC3339Nano, text)
				must(t, err)
				since = append(since, at.Sub(epoch))
			}
			r := check(t, Input{Limits: one(t, tt.rule), Calls: at(since...), Jitter: tt.jitter})
			row, says := r.Rows[0], r.Violations()
			if row.Exceeded != tt.exceeded || (len(says) > 0) != tt.exceeded {
				t.Errorf("exceeded %t, want %t: %+v, violations %q", row.Exceeded, tt.exceeded, row, says)
			}
			if row.Worst != tt.worst || strings.Contains(tt.rule, "active") && (row.Calls != int(tt.worst) || row.Used != nil) {
				t.Errorf("worst %d, want %d: %+v", row.Worst, tt.worst, row)
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
				when := momentIn(rnd, ours.zone)
				from, to := ours.period(when)
				if prev, next := theirs.Prev(when), theirs.Next(when); !from.Equal(prev) || !to.Equal(next) {
					t.Errorf("seed %d: %s in %s at %v: %v to %v; wallclock has %v to %v", seed, resets, zone, when, from.UTC(), to.UTC(), prev.UTC(), next.UTC())
				}
			}
		}
	}
}

// momentIn draws a moment of thirty years, half of them near a shift of the zone's clocks, where there is one.
func momentIn(rnd *rand.Rand, zone *time.Location) time.Time {
	when := time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rnd.Int64N(int64(30 * 365 * 24 * time.Hour))))
	if _, shift := when.In(zone).ZoneBounds(); !shift.IsZero() && rnd.IntN(2) == 0 {
		return shift.Add(time.Duration(rnd.Int64N(int64(6*time.Hour))) - 3*time.Hour)
	}
	return when
}

// The two who read hours, the judge and what it judges, find the same minutes.
func TestHoursAgree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	held, all := 0, 0
	for _, active := range []string{"* 8-19 * * 1-5", "*/7 * * * *", "30 2 * * *", "* 0-3 1 * 0", "* 2 * 3,10 *", "0-29 */2 * * *"} {
		for _, zone := range []string{"UTC", "America/New_York", "Europe/Dublin", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana"} {
			ours, err := readHours(active, zone)
			must(t, err)
			theirs, err := wallclock.ParseWindow(active, zone)
			must(t, err)
			for range 200 {
				when := momentIn(rnd, ours.zone)
				if ours.shows(when) != theirs.Holds(when) {
					t.Fatalf("seed %d: %q in %s at %v: %v", seed, active, zone, when.UTC(), ours.shows(when))
				}
				if all++; ours.shows(when) {
					held++
				}
			}
		}
	}
	if held < all/20 || held > all/2 {
		t.Errorf("%d of %d moments are in their hours; the test should see both", held, all)
	}
}

// "Nor one that is paused by hand, until its pause ends."
func TestPauses(t *testing.T) {
	t.Parallel()
	limits := parse(t, `
limits:
  p:
    scopes:
      "*": {paused: true, paused_until: "2027-01-15T08:00:01Z"}
      free: {paused: false}
      ever: {paused: true, rules: [{name: r, algorithm: concurrency, limit: 1}]}
  q:
    paused: true
    paused_until: 2027-01-15T08:00:01+00:00
    scopes: {x: {paused: false, rules: [{name: r, algorithm: concurrency, limit: 1}]}}
`) // epoch is 750 ms before that
	for name, tt := range map[string]struct {
		scope     string
		at        time.Duration
		paused    bool
		unmatched bool
	}{
		"by the star":                   {"p/a", 0, true, false},
		"below what is paused":          {"p/a/b", 750*ms - 1, true, false},
		"it has ended":                  {"p/a", 750 * ms, false, true}, // no rule is left
		"beside it":                     {"p", 0, false, true},
		"lifted for one":                {"p/free", 0, false, true},
		"for good":                      {"p/ever", 365 * 24 * time.Hour, true, false},
		"further up it stays paused":    {"q/x", 0, true, false},
		"further up it ends, and is on": {"q/x", 750 * ms, false, false},
	} {
		calls := at(tt.at)
		calls[0].Scope = tt.scope
		r := check(t, Input{Limits: limits, Calls: calls, Jitter: ms})
		if len(r.Paused) > 0 != tt.paused || len(r.Unmatched) > 0 != tt.unmatched || r.Exceeded() != (tt.paused || tt.unmatched) || r.OK() == r.Exceeded() {
			t.Errorf("%s: paused %q, unmatched %q", name, r.Paused, r.Unmatched)
		}
		if says := strings.Join(r.Violations(), "; "); strings.Contains(says, tt.scope+" was called while it was paused") != tt.paused {
			t.Errorf("%s: %q", name, says)
		}
	}
}

// of gives the calls their costs by unit.
func of(calls []countapi.Call, costs ...map[string]int64) []countapi.Call {
	for i, c := range costs {
		calls[i].Costs = c
	}
	return calls
}

// "Units are those that a call says it costs, of the rule's unit."
func TestUnits(t *testing.T) {
	t.Parallel()
	const (
		tokens   = "algorithm: sliding-window, limit: 10, per: 1s, unit: tokens"
		bucket   = "algorithm: token-bucket, limit: 10, per: 1s, burst: 10, unit: tokens"
		requests = "algorithm: sliding-window, limit: 1, per: 1s"
		places   = "algorithm: concurrency, limit: 1"
	)
	type costs = map[string]int64
	for name, tt := range map[string]struct {
		rule     string
		calls    []countapi.Call
		counted  int
		units    int64
		exceeded bool
	}{
		"tokens at the limit":        {tokens, of(at(0, 0), costs{"tokens": 4}, costs{"tokens": 6}), 2, 10, false},
		"a token over":               {tokens, of(at(0, 0), costs{"tokens": 5}, costs{"tokens": 6}), 2, 11, true},
		"a token over the burst":     {bucket, of(at(0, 0), costs{"tokens": 5}, costs{"tokens": 6}), 2, 11, true},
		"no tokens are no calls":     {tokens, of(at(0, 0), costs{"rows": 500}, costs{"tokens": 0}), 0, 0, false},
		"a number counts everywhere": {tokens, costing(at(0, 0), 5, 6), 2, 11, true},
		"a request each":             {requests, of(at(0, 0), costs{"tokens": 0}, costs{"tokens": 6}), 2, 2, true},
		"no requests":                {requests, of(at(0, 0), costs{"requests": 0, "tokens": 5}, costs{"requests": 1}), 1, 1, false},
		"places are taken":           {places, of(at(0, 0), costs{"requests": 0}, costs{"tokens": 6}), 2, 1, true},
	} {
		r := check(t, Input{Limits: one(t, tt.rule), Calls: tt.calls})
		if row := r.Rows[0]; row.Calls != tt.counted || row.Units != tt.units || row.Exceeded != tt.exceeded || row.Tasks != tt.counted {
			t.Errorf("%s: %+v", name, row)
		}
	}
	bad := Input{Limits: one(t, tokens), Calls: of(at(0), costs{"tokens": -1}), Epoch: epoch}
	if r, err := Check(bad); err == nil {
		t.Errorf("less than nothing: %+v", r)
	}
}

// Tasks say what they cost as calls do, and a call that costs otherwise is told.
func TestTasksWithUnits(t *testing.T) {
	t.Parallel()
	tasks, err := ReadTasks(strings.NewReader(`{"id":"id0","scope":"payments","cost":{"tokens":5}}
{"id":"id1","scope":"payments","cost":{"requests":2,"tokens":5}}
`))
	must(t, err)
	calls := of(at(0, 0), map[string]int64{"requests": 1, "tokens": 5}, map[string]int64{"requests": 2, "tokens": 6})
	calls[1].Cost = 2
	r := check(t, Input{Limits: one(t, "algorithm: sliding-window, limit: 20, per: 1s, unit: tokens"), Calls: calls, Tasks: tasks})
	if !slices.Equal(r.Mismatched, []string{"id1"}) || r.Exceeded() {
		t.Errorf("%+v", r)
	}
}
