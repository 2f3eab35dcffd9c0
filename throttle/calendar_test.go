package throttle

import (
	"fmt"
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
	type step struct {
		at   string
		cost int64
		want answer
	}
	allow := func(remaining int64, reset time.Duration) answer { return answer{true, remaining, 0, reset} }
	deny := func(remaining int64, retry, reset time.Duration) answer {
		return answer{false, remaining, retry, reset}
	}
	tests := map[string]struct {
		rule  policy.Rule
		steps []step
	}{
		"a day": {daily(2, "America/Los_Angeles"), []step{
			0: {"2026-01-10T07:59:59.999999Z", 2, allow(0, time.Microsecond)},
			1: {"2026-01-10T07:59:59.999999Z", 1, deny(0, time.Microsecond, time.Microsecond)},
			2: {"2026-01-10T08:00:00Z", 1, allow(1, 24*hour)},
			3: {"2026-01-10T20:00:00Z", 2, deny(1, 12*hour, 12*hour)},
		}},
		"a day of 23 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {"2026-03-08T08:00:00Z", 1, allow(0, 23*hour)},
			1: {"2026-03-08T10:00:00Z", 1, deny(0, 21*hour, 21*hour)}, // clocks go from 2:00 to 3:00
			2: {"2026-03-09T07:00:00Z", 1, allow(0, 24*hour)},
		}},
		"a day of 25 hours": {daily(1, "America/Los_Angeles"), []step{
			0: {"2026-11-01T07:00:00Z", 1, allow(0, 25*hour)},
			1: {"2026-11-02T07:00:00Z", 1, deny(0, hour, hour)},
			2: {"2026-11-02T08:00:00Z", 1, allow(0, 24*hour)},
		}},
		"months": {resetAt("0 0 1 * *", "America/Los_Angeles"), []step{
			0: {"2026-02-01T08:00:00Z", 1, allow(0, 28*oneDay)},
			1: {"2026-03-01T08:00:00Z", 1, allow(0, 31*oneDay-hour)},
			2: {"2026-04-01T06:59:59Z", 1, deny(0, sec, sec)},
		}},
		"leap days": {resetAt("0 0 29 2 *", "UTC"), []step{
			0: {"2028-02-29T00:00:00Z", 1, allow(0, (4*365+1)*oneDay)},
			1: {"2096-02-29T00:00:00Z", 1, allow(0, 8*365*oneDay+oneDay)}, // 2100 is none
		}},
		"limit 0 suspends": {daily(0, "UTC"), []step{{"2026-01-10T00:00:00Z", 1, deny(0, Never, 0)}}},
	}
	for name, test := range tests {
		onBothIn(t, name, Config{}, policyOf(t, test.rule), func(b *bench) {
			for i, s := range test.steps {
				b.atTime(s.at)
				if got := answerOf(b.decide(Request{Scope: "p/x", Cost: s.cost})); got != s.want {
					b.t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
		})
	}
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
		"both periods that the state has": {pacific, month, []step{
			{"2026-01-10T12:00:00Z", false, 3, 7}, {"2026-01-11T12:00:00Z", false, 3, 7}, {"2026-01-11T12:00:00Z", true, 1, 3},
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

// taken makes a limiter take it for another time, until a reply tells it better.
func (b *bench) taken(text string) {
	at := when(b.t, text)
	b.scopes.now = func(string) time.Time { return at }
	clear(b.scopes.known)
}

// A caller that takes it for another time is told so by the server's clock, asks again
// at once, and is answered as everybody else is.
func TestCalendarStale(t *testing.T) {
	t.Parallel()
	const now = "2026-01-10T12:00:00Z"
	for name, taken := range map[string]string{
		"a day behind": "2026-01-09T12:00:00Z", "a year behind": "2025-01-10T12:00:00Z",
		"a day ahead": "2026-01-11T12:00:00Z", "a year ahead": "2027-01-10T12:00:00Z",
		"a moment behind": "2026-01-09T23:59:59.999999Z",
	} {
		onBothIn(t, name, Config{}, policyOf(t, daily(2, "UTC")), func(b *bench) {
			b.atTime(now)
			for i, want := range []answer{{true, 1, 0, 12 * hour}, {true, 0, 0, 12 * hour}, {false, 0, 12 * hour, 12 * hour}} {
				b.taken(taken)
				if got := answerOf(b.decide(Request{Scope: "p/x"})); got != want {
					b.t.Errorf("step %d: got %v, want %v", i, got, want)
				}
			}
			b.taken(taken)
			d, err := b.Peek(ctx, Request{Scope: "p/x"})
			if got, want := answerOf(d), (answer{false, 0, 12 * hour, 12 * hour}); err != nil || got != want {
				b.t.Errorf("peek: got %v, %v; want %v", got, err, want)
			}
		})
	}
}

// With the boundaries of another time nothing is admitted, changed or given back that
// should not be, whoever asks, and the wait is short.
func TestCalendarStaleScripts(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, daily(2, "UTC")), func(b *bench) {
		b.atTime("2026-01-10T12:00:00Z")
		d := b.decide(Request{Scope: "p/x"})
		p := b.plan("p/x")
		key := p.keys[0]
		before := b.rdb.Get(ctx, key).Val()
		for _, taken := range []string{"2026-01-09T12:00:00Z", "2026-01-11T12:00:00Z", "2026-02-11T12:00:00Z"} {
			stale := compileScope(b.scopes.keys, p.scope, p.bounds, 0, when(b.t, taken))
			reply, err := b.runner.run(ctx, b.attempt(stale, &Request{Scope: "p/x", ID: NewID(), Cost: 1, MaxDelay: time.Minute}).call())
			noError(b.t, err)
			got := fromReply(stale, reply)
			if got.Allowed || got.RetryAfter != 10*ms || !stale.stale(got.At) {
				b.t.Errorf("taken for %s: %+v", taken, got)
			}
			if after := b.rdb.Get(ctx, key).Val(); after != before {
				b.t.Errorf("taken for %s: the denial changed %x to %x", taken, before, after)
			}
			ask := Request{Scope: "p/x", ID: NewID(), Cost: 1, Turn: Turn{WaiterID: "t"}}
			if reply, err = b.runner.run(ctx, b.attempt(stale, &ask).call()); err != nil {
				b.t.Fatal(err)
			}
			if turn := fromReply(stale, reply); turn.Allowed || turn.RetryAfter != 10*ms || turn.Position.Waits || turn.Binding != 0 {
				b.t.Errorf("taken for %s, a turn: %+v", taken, turn)
			}
			if b.rdb.Exists(ctx, p.queue[1].(string)).Val() != 0 {
				b.t.Errorf("taken for %s: somebody stands in line", taken)
			}
		}
		// Units come back whatever the time is taken for.
		b.scopes.refresh(p, when(b.t, "2026-02-11T12:00:00Z"))
		b.scopes.now = func(string) time.Time { return when(b.t, "2026-02-11T12:00:00Z") }
		b.giveBack(d.Grant)
		b.scopes.now = b.serverTime
		if d := b.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 1 {
			b.t.Errorf("after giving back: %+v", d)
		}
	})
}

// A start under a calendar is expected where its period begins: on the first of a month, and at midnight also on days of 23 and 25 hours.
// Joined, denied, inspected and forecast alike.
func TestCalendarStarts(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	noError(t, err)
	for name, test := range map[string]struct {
		cron, now string
		wants     []time.Time
	}{
		"months": {"0 0 1 * *", "2025-12-15T12:00:00Z", []time.Time{
			time.Date(2026, 1, 1, 0, 0, 0, 0, berlin), time.Date(2026, 2, 1, 0, 0, 0, 0, berlin), time.Date(2026, 3, 1, 0, 0, 0, 0, berlin),
			time.Date(2026, 4, 1, 0, 0, 0, 0, berlin), time.Date(2026, 5, 1, 0, 0, 0, 0, berlin), time.Date(2026, 6, 1, 0, 0, 0, 0, berlin),
		}},
		"a day of 23 hours": {"0 0 * * *", "2026-03-26T12:00:00Z", []time.Time{
			time.Date(2026, 3, 27, 0, 0, 0, 0, berlin), time.Date(2026, 3, 28, 0, 0, 0, 0, berlin), time.Date(2026, 3, 29, 0, 0, 0, 0, berlin),
			time.Date(2026, 3, 30, 0, 0, 0, 0, berlin), time.Date(2026, 3, 31, 0, 0, 0, 0, berlin),
		}},
		"a day of 25 hours": {"0 0 * * *", "2026-10-24T12:00:00Z", []time.Time{
			time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), time.Date(2026, 10, 26, 0, 0, 0, 0, berlin), time.Date(2026, 10, 27, 0, 0, 0, 0, berlin),
			time.Date(2026, 10, 28, 0, 0, 0, 0, berlin),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := policyOf(t, policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1, Resets: wallclock.MustParse(test.cron, "Europe/Berlin")})
			onBoth(t, Config{}, rules, func(b *bench) { b.startsAt(berlin, test.now, test.wants) })
		})
	}
}

// startsAt has one start now, and others expected at moments.
func (b *bench) startsAt(zone *time.Location, now string, wants []time.Time) {
	t := b.t
	t.Helper()
	b.atTime(now)
	if d := b.decide(Request{Scope: "p", ID: NewID()}); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	forecast, err := b.Forecast(t.Context(), "p")
	noError(t, err)
	at := time.UnixMicro(b.now.Load())
	for i, want := range wants {
		id := fmt.Sprint("t", i)
		if got := at.Add(forecast.Rules[0].Period(int64(i + 1))); !got.Equal(want) {
			t.Errorf("period %d begins at %s, want %s", i+1, got.In(zone), want)
		}
		var in time.Duration
		if i%2 == 0 {
			in = b.decide(Request{Scope: "p", Turn: Turn{WaiterID: id}, ID: NewID()}).Position.Expected
		} else {
			joined, err := b.Waitlist().Join(t.Context(), []Waiter{{Scope: "p", ID: id, Cost: 1}}, 0, 0)
			if err != nil || !joined[0].Waits {
				t.Fatalf("%+v, %v", joined, err)
			}
			in = joined[0].Expected
		}
		if got := at.Add(in); !got.Equal(want) {
			t.Errorf("task %d is told to start at %s, want %s", i, got.In(zone), want)
		}
		seen := b.ticket("p", id, 1)
		if got := seen.At.Add(seen.Expected.In); !got.Equal(want) {
			t.Errorf("task %d is inspected to start at %s, want %s", i, got.In(zone), want)
		}
	}
}
