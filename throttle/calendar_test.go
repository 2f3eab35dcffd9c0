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
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (b *bench) atTime(text string) {
	b.t.Helper()
	b.now.Store(when(b.t, text).UnixMicro())
}

func monthly(limit int64) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("0 0 1 * *", "America/Los_Angeles")}
}

func daily(limit int64, zone string) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("0 0 * * *", zone)}
}

func minutely(limit int64) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("* * * * *", "UTC")}
}

// "Calendar admits limit units in each period": days of 23 and 25 hours, months, leap
// days. A denial waits for the end of the period to the microsecond.
func TestCalendarSteps(t *testing.T) {
	t.Parallel()
	type step struct {
		at   string
		cost int64
		want answer
	}
	allow := func(remaining int64, reset time.Duration) answer { return answer{true, remaining, 0, reset} }
	deny := func(remaining int64, retry, reset time.Duration) answer {
		return answer{false, remaining, retry, reset}
	}
	rolling := daily(10, "UTC")
	rolling.Rollover = 5
	far := daily(10, "UTC")
	far.Rollover = 25
	even := daily(4, "UTC")
	even.Spread = true
	evenly := minutely(3)
	evenly.Spread, evenly.Margin = true, sec
	tests := map[string]struct {
		rule  policy.Rule
		steps []step
	}{
		"a day": {daily(2, "America/Los_Angeles"), []step{
			0: {"2026-01-10T07:59:59.999999Z", 2, allow(0, time.Microsecond)},
			1: {"2026-01-10T07:59:59.999999Z", 1, deny(0, time.Microsecond, time.Microsecond)},
			2: {"2026-01-10T08:00:00Z", 1, allow(1, 24*hour)},
			3: {"2026-01-10T20:00:00Z", 2, deny(1, 12*hour, 12*hour)},
			4: {"2026-01-11T07:59:59Z", 1, allow(0, sec)},
			5: {"2026-01-11T08:00:00Z", 2, allow(0, 24*hour)},
		}},
		"a day of 23 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {"2026-03-08T08:00:00Z", 1, allow(0, 23*hour)},
			1: {"2026-03-08T10:00:00Z", 1, deny(0, 21*hour, 21*hour)}, // clocks go from 2:00 to 3:00
			2: {"2026-03-09T06:59:59Z", 1, deny(0, sec, sec)},
			3: {"2026-03-09T07:00:00Z", 1, allow(0, 24*hour)},
		}},
		"a day of 25 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {"2026-11-01T07:00:00Z", 1, allow(0, 25*hour)},
			1: {"2026-11-02T07:00:00Z", 1, deny(0, hour, hour)},
			2: {"2026-11-02T08:00:00Z", 1, allow(0, 24*hour)},
		}},
		"a time of day that is skipped": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("30 2 * * *", "Europe/Berlin")}, []step{
			0: {"2026-03-28T01:30:00Z", 1, allow(0, 23*hour+30*time.Minute)}, // to 3:00, to which the clocks jump
			1: {"2026-03-29T01:00:00Z", 1, allow(0, 23*hour+30*time.Minute)},
			2: {"2026-03-30T00:30:00Z", 1, allow(0, 24*hour)},
		}},
		"a time of day that comes twice": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("30 2 * * *", "Europe/Berlin")}, []step{
			0: {"2026-10-25T00:30:00Z", 1, allow(0, 25*hour)},
			1: {"2026-10-25T01:30:00Z", 1, deny(0, 24*hour, 24*hour)}, // 2:30 again
		}},
		"the hours of a day of 25": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("0 * * * *", "Europe/Berlin")}, []step{
			0: {"2026-10-25T00:00:00Z", 1, allow(0, hour)},
			1: {"2026-10-25T01:00:00Z", 1, allow(0, hour)},
			2: {"2026-10-25T01:59:59Z", 1, deny(0, sec, sec)},
		}},
		"a zone of half an hour": {daily(1, "Australia/Lord_Howe"), []step{
			0: {"2026-04-04T13:00:00Z", 1, allow(0, 24*hour+30*time.Minute)},
			1: {"2026-04-05T13:29:59Z", 1, deny(0, sec, sec)},
			2: {"2026-04-05T13:30:00Z", 1, allow(0, 24*hour)},
		}},
		"a day that never was": {daily(1, "Pacific/Apia"), []step{
			0: {"2011-12-29T10:00:00Z", 1, allow(0, 24*hour)},
			1: {"2011-12-30T09:59:59Z", 1, deny(0, sec, sec)},
			2: {"2011-12-30T10:00:00Z", 1, allow(0, 24*hour)}, // the 31st: the 30th was skipped
		}},
		"months": {monthly(3), []step{
			0: {"2026-02-01T07:59:59Z", 3, allow(0, sec)},
			1: {"2026-02-01T08:00:00Z", 3, allow(0, 28*oneDay)},
			2: {"2026-03-01T08:00:00Z", 3, allow(0, 31*oneDay-hour)},
			3: {"2026-04-01T06:59:59Z", 1, deny(0, sec, sec)},
			4: {"2026-04-01T07:00:00Z", 3, allow(0, 30*oneDay)},
		}},
		"leap years": {monthly(1), []step{
			0: {"2028-02-01T08:00:00Z", 1, allow(0, 29*oneDay)},
			1: {"2028-02-29T08:00:00Z", 1, deny(0, oneDay, oneDay)},
			2: {"2028-03-01T08:00:00Z", 1, allow(0, 31*oneDay-hour)},
		}},
		"leap days": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("0 0 29 2 *", "UTC")}, []step{
			0: {"2028-02-29T00:00:00Z", 1, allow(0, (4*365+1)*oneDay)},
			1: {"2031-02-28T00:00:00Z", 1, deny(0, 366*oneDay, 366*oneDay)},
			2: {"2096-02-29T00:00:00Z", 1, allow(0, 8*365*oneDay+oneDay)}, // 2100 is none
		}},
		"the 31st of a month": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("0 12 31 * *", "UTC")}, []step{
			0: {"2026-01-31T12:00:00Z", 1, allow(0, 59*oneDay)},
			1: {"2026-03-31T12:00:00Z", 1, allow(0, 61*oneDay)},
		}},
		"office hours": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse("0 9,17 * * mon-fri", "Europe/Berlin")}, []step{
			0: {"2026-01-09T16:00:00Z", 1, allow(0, 64*hour)},
			1: {"2026-01-12T08:00:00Z", 1, allow(0, 8*hour)},
		}},
		"limit 0 suspends": {daily(0, "UTC"), []step{
			0: {"2026-01-10T00:00:00Z", 1, deny(0, Never, 0)},
		}},
		"a margin ends the period sooner": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 5, Resets: wallclock.MustParse("* * * * *", "UTC"), Margin: 10 * sec}, []step{
			0: {"2026-01-10T00:00:49.999999Z", 1, allow(4, 10*sec+time.Microsecond)},
			1: {"2026-01-10T00:00:50Z", 1, deny(4, 10*sec, 10*sec)},
			2: {"2026-01-10T00:01:00Z", 5, allow(0, 60*sec)},
		}},
		"what is left rolls over, up to the cap": {rolling, []step{
			0: {"2026-01-10T12:00:00Z", 8, allow(2, 12*hour)}, // new: nothing to roll over
			1: {"2026-01-11T00:00:00Z", 1, allow(11, 24*hour)},
			2: {"2026-01-11T01:00:00Z", 10, allow(1, 23*hour)},
			3: {"2026-01-11T01:00:00Z", 2, deny(1, 23*hour, 23*hour)},
			4: {"2026-01-12T00:00:00Z", 10, allow(1, 24*hour)}, // one of 12 was left
			5: {"2026-01-12T00:00:00Z", 1, allow(0, 24*hour)},
			6: {"2026-01-13T00:00:00Z", 1, allow(9, 24*hour)},
			7: {"2026-01-14T00:00:00Z", 1, allow(14, 24*hour)}, // nine left, five at most
			8: {"2026-01-15T00:00:00Z", 1, allow(14, 24*hour)}, // and they roll on
			9: {"2026-01-17T00:00:00Z", 1, allow(14, 24*hour)}, // the 16th passed unused
		}},
		"what was rolled over may roll again": {far, []step{
			0: {"2026-01-10T12:00:00Z", 1, allow(9, 12*hour)},
			1: {"2026-01-11T00:00:00Z", 1, allow(18, 24*hour)},
			2: {"2026-01-12T00:00:00Z", 1, allow(27, 24*hour)},
			3: {"2026-01-13T00:00:00Z", 1, allow(34, 24*hour)},
			4: {"2026-01-13T00:00:00Z", 10, allow(24, 24*hour)},
			5: {"2026-01-15T00:00:00Z", 10, allow(25, 24*hour)}, // what had come to the 14th, which passed unused, too
		}},
		"spread": {even, []step{
			0: {"2026-01-10T00:00:00Z", 1, allow(3, 24*hour)},
			1: {"2026-01-10T00:00:00Z", 1, deny(3, 6*hour, 24*hour)},
			2: {"2026-01-10T06:00:00Z", 1, allow(2, 18*hour)},
			3: {"2026-01-10T23:00:00Z", 1, allow(1, hour)}, // late: two for one hour
			4: {"2026-01-10T23:29:59Z", 1, deny(1, sec, 30*time.Minute+sec)},
			5: {"2026-01-10T23:30:00Z", 1, allow(0, 30*time.Minute)},
			6: {"2026-01-11T00:00:00Z", 4, allow(0, 24*hour)},
		}},
		"spread, with a margin": {evenly, []step{
			0: {"2026-01-10T00:00:00Z", 1, allow(2, 60*sec)},
			1: {"2026-01-10T00:00:00Z", 1, deny(2, 19666667*time.Microsecond, 60*sec)},
			2: {"2026-01-10T00:00:19.666667Z", 1, allow(1, 40333333*time.Microsecond)},
			3: {"2026-01-10T00:00:58.999999Z", 1, allow(0, 1000001*time.Microsecond)},
			4: {"2026-01-10T00:00:59Z", 1, deny(0, sec, sec)},
			5: {"2026-01-10T00:01:00Z", 1, allow(2, 60*sec)},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, test.rule), func(b *bench) {
				for i, s := range test.steps {
					b.atTime(s.at)
					if got := answerOf(b.decide(Request{Scope: "p/x", Cost: s.cost})); got != s.want {
						b.t.Errorf("step %d: got %v, want %v", i, got, s.want)
					}
				}
			})
		})
	}
}

// "Boundaries that change": units charged since the new period began stay spent.
func TestCalendarChanged(t *testing.T) {
	t.Parallel()
	pacific := daily(10, "America/Los_Angeles")
	pacificRolling := pacific
	pacificRolling.Rollover = 5
	spreadMonth := policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("@monthly", "UTC"), Spread: true}
	tests := map[string]struct {
		before, after policy.Rule
		run           func(was, is *bench)
	}{
		"what was spent since the new period began": {daily(10, "UTC"), pacific, func(was, is *bench) {
			was.atTime("2026-01-10T07:00:00Z") // the 9th in California
			was.decide(Request{Scope: "p/x", Cost: 4})
			was.atTime("2026-01-10T07:30:00Z")
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 5 {
				is.t.Errorf("%+v", d)
			}
			was.atTime("2026-01-10T08:00:00Z")
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 9 {
				is.t.Errorf("all of it was before the new period: %+v", d)
			}
		}},
		"what may have been spent since": {daily(10, "UTC"), pacific, func(was, is *bench) {
			was.atTime("2026-01-10T07:00:00Z")
			was.decide(Request{Scope: "p/x", Cost: 4})
			was.atTime("2026-01-10T09:00:00Z")
			was.decide(Request{Scope: "p/x", Cost: 2})
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 3 {
				is.t.Errorf("the state can't tell four from two, and all count: %+v", d)
			}
			was.atTime("2026-01-11T07:59:59Z")
			if d := is.decide(Request{Scope: "p/x", Cost: 4}); d.Allowed || d.RetryAfter != sec {
				is.t.Errorf("%+v", d)
			}
		}},
		"both periods that the state has": {pacific, policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("@monthly", "UTC")}, func(was, is *bench) {
			for _, at := range []string{"2026-01-10T12:00:00Z", "2026-01-11T12:00:00Z"} {
				was.atTime(at)
				was.decide(Request{Scope: "p/x", Cost: 3})
			}
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 3 {
				is.t.Errorf("%+v", d)
			}
		}},
		"a shorter period": {policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("@monthly", "UTC")}, daily(10, "UTC"), func(was, is *bench) {
			was.atTime("2026-01-10T12:00:00Z")
			was.decide(Request{Scope: "p/x", Cost: 9})
			if d := is.decide(Request{Scope: "p/x", Cost: 2}); d.Allowed || d.RetryAfter != 12*hour {
				is.t.Errorf("%+v", d)
			}
		}},
		"a pace of months is over with the day": {spreadMonth, func() policy.Rule { r := daily(10, "UTC"); r.Spread = true; return r }(), func(was, is *bench) {
			was.atTime("2026-01-10T12:00:00Z")
			was.decide(Request{Scope: "p/x"})
			if d := is.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != 12*hour {
				is.t.Errorf("%+v", d)
			}
		}},
		"no pace any more": {spreadMonth, policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("@monthly", "UTC")}, func(was, is *bench) {
			was.atTime("2026-01-10T12:00:00Z")
			was.decide(Request{Scope: "p/x"})
			if d := is.decide(Request{Scope: "p/x"}); !d.Allowed || d.Rules[0].Remaining != 8 {
				is.t.Errorf("%+v", d)
			}
		}},
		"roll-over from where the zones differ": {pacificRolling, func() policy.Rule { r := daily(10, "UTC"); r.Rollover = 5; return r }(), func(was, is *bench) {
			was.atTime("2026-01-10T12:00:00Z")
			was.decide(Request{Scope: "p/x", Cost: 7})
			was.atTime("2026-01-11T00:00:00Z")
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 12 {
				is.t.Errorf("three of the day before were left: %+v", d)
			}
		}},
		"roll-over is switched off": {pacificRolling, pacific, func(was, is *bench) {
			was.atTime("2026-01-10T12:00:00Z")
			was.decide(Request{Scope: "p/x", Cost: 7})
			was.atTime("2026-01-11T12:00:00Z")
			was.decide(Request{Scope: "p/x"})
			if d := is.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 8 {
				is.t.Errorf("%+v", d)
			}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, test.before), func(b *bench) { test.run(b, b.under(test.after)) })
		})
	}
}
