package throttle

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

const (
	dayHours   = "* 8-19 * * *"
	nightHours = "* 20-23,0-7 * * *"
)

// dayAndNight has fixed windows of so much by day and by night.
func dayAndNight(t *testing.T, day, night int64, per time.Duration) *policy.Policy {
	t.Helper()
	return policyOf(t,
		policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: day, Per: per, Active: wallclock.MustParseWindow(dayHours, "UTC")},
		policy.Rule{Name: "night", Algorithm: policy.FixedWindow, Limit: night, Per: per, Active: wallclock.MustParseWindow(nightHours, "UTC")},
	)
}

// o'clock is µs after midnight of the day on which tests begin.
func oClock(h, m, s int64) int64 { return ((h*60+m)*60 + s) * 1_000_000 }

// "The rule holds in each minute that matches": who asks at the edges, and how long who is denied is told to wait.
func TestHoursSteps(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, dayAndNight(t, 1, 2, 24*time.Hour), func(b *bench) {
		for i, row := range []struct {
			at    int64
			ahead time.Duration
			rule  string
			want  bool
			retry time.Duration
		}{
			0: {oClock(7, 59, 59) + 999_999, 0, "night", true, 0},
			1: {oClock(8, 0, 0), 0, "day", true, 0},
			2: {oClock(8, 0, 0), 0, "day", false, 12 * time.Hour},
			3: {oClock(19, 59, 59), 0, "day", false, sec},
			4: {oClock(19, 59, 59) + 900_000, sec, "day", false, 100 * ms}, // no start of the night's is granted by day
			5: {oClock(20, 0, 0), 0, "night", true, 0},
			6: {oClock(20, 0, 1), 0, "night", false, 4*time.Hour - sec},
			7: {oClock(24, 0, 0), 0, "night", true, 0},
			8: {oClock(32, 0, 0), 0, "day", true, 0},
		} {
			b.at(row.at)
			peeked, err := b.Peek(t.Context(), Request{Scope: "p/x", MaxDelay: row.ahead})
			if err != nil || peeked.Allowed != row.want || len(peeked.Rules) != 1 || peeked.Rules[0].Rule != row.rule {
				b.t.Errorf("%d: peek says %+v, %v", i, peeked, err)
			}
			d := b.decide(Request{Scope: "p/x", MaxDelay: row.ahead})
			if d.Allowed != row.want || len(d.Rules) != 1 || d.Rules[0].Rule != row.rule || d.RetryAfter != row.retry || d.Rules[0].RetryAfter != row.retry {
				b.t.Errorf("%d: got %+v", i, d)
			}
		}
	})
}

// "A start that is granted for a moment at which the rule holds is charged under it, whatever the process's clock says": off by
// hours either way, at both edges, alone, with others, as a task, ahead. What was charged under the wrong rule is given back.
func TestHoursAndAWrongClock(t *testing.T) {
	t.Parallel()
	pol := dayAndNight(t, 50, 50, 48*time.Hour)
	for name, req := range map[string]Request{
		"alone": {}, "its own id": {ID: "own"}, "a task": {Waiter: waiter("t")}, "ahead": {MaxDelay: MaxDelayLimit},
	} {
		req.Scope = "p/x"
		for _, off := range []time.Duration{-5 * time.Hour, -time.Second, 0, time.Second, 5 * time.Hour} {
			t.Run(fmt.Sprint(name, " ", off), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					m, rdb := redistest.Miniredis(t)
					for _, edge := range []struct{ server, rule string }{
						{"2030-03-01T07:59:59.5Z", "night"}, {"2030-03-01T08:00:00Z", "day"},
						{"2030-03-01T19:59:59.5Z", "day"}, {"2030-03-01T20:00:00Z", "night"},
					} {
						m.FlushAll()
						at := when(t, edge.server)
						m.SetTime(at)
						l := newLimiter(t, rdb, pol, Config{})
						// What the process believes before a reply has told better.
						l.clocks.Of(wire.Prefix(l.cfg.Prefix, "p")).Observe(time.Now(), time.Now(), at.Add(off))
						ask := l.Decide
						if req.Waiter.ID != "" {
							ask = l.Start
						}
						d, err := ask(t.Context(), req)
						if err != nil || !d.Allowed || len(d.Rules) != 1 || d.Rules[0].Rule != edge.rule || d.Rules[0].Remaining != 49 {
							t.Errorf("at %s: %+v, %v", edge.server, d, err)
						}
						other := map[string]string{"day": "night", "night": "day"}[edge.rule]
						always := policyOf(t, policy.Rule{Name: other, Algorithm: policy.FixedWindow, Limit: 50, Per: 48 * time.Hour})
						if p, err := newLimiter(t, rdb, always, Config{}).Peek(t.Context(), Request{Scope: "p/x"}); err != nil || p.Rules[0].Remaining != 50 {
							t.Errorf("at %s: the rule that did not hold was charged: %+v, %v", edge.server, p, err)
						}
					}
				})
			})
		}
	}
}

// What tells whether rules hold, and when that changes.
func TestHoursAreTold(t *testing.T) {
	t.Parallel()
	pol := parsedPolicy(t, `limits: {p: {rules: [
  {name: always, algorithm: concurrency, limit: 1},
  {name: day, algorithm: concurrency, limit: 1, active: "* 8-19 * * *"},
  {name: late, algorithm: concurrency, limit: 1, active: "* 21 * * *", timezone: Asia/Kathmandu, shadow: true}]}}`)
	onBoth(t, Config{}, pol, func(b *bench) {
		b.at(oClock(7, 0, 0))
		var got []string
		list, err := b.Hours("p/x")
		for _, h := range list {
			got = append(got, fmt.Sprint(h.Rule.Name, " ", h.Holds, " ", h.Changes.UTC().Format("15:04")))
		}
		if want := []string{"day false 08:00", "late false 15:15"}; err != nil || !slices.Equal(got, want) {
			b.t.Errorf("got %q, %v", got, err)
		}
		if o, err := b.Forecast(t.Context(), "p/x"); err != nil || len(o.Rules) != 1 || o.Until.UnixMicro() != epoch+oClock(8, 0, 0) {
			b.t.Errorf("the outlook is %+v, %v", o, err)
		}
	})
}

// A start is granted by the rules that hold then, so nobody is granted one that is behind an edge of hours until then: those
// who would have to start at the edge are not handed out before it, to be decided anew again and again.
func TestHoursEndBeforeTheStartOfATurn(t *testing.T) {
	t.Parallel()
	policy := dayAndNight(t, 1, 2, time.Minute)
	for name, from := range map[string]time.Duration{"near": 0, "far": 40 * ms} {
		onBothIn(t, name, Config{}, policy, func(b *bench) {
			b.at(oClock(19, 59, 30))
			b.decide(Request{Scope: "p/x"})
			b.queued("p/x", "a", "b", "c")
			grants := func() []waitlist.Granted {
				d, err := b.Waitlist().Dispatch(ctx, waitlist.Request{
					Provider: "p", Max: 10, Lead: 10 * ms, Spread: from, From: from, Serves: []wire.Weighted{{Queue: "default", Weight: 1}},
				})
				noError(b.t, err)
				return d.Granted
			}
			for _, before := range []int64{10_000, 5_000, 1} {
				b.at(oClock(20, 0, 0) - before)
				if got := grants(); len(got) != 0 {
					b.t.Errorf("%d µs before: %+v", before, got)
				}
			}
			b.at(oClock(20, 0, 0))
			got := grants()
			if len(got) != 2 {
				b.t.Fatalf("%+v", got)
			}
			for _, g := range got {
				if g.Wait != from {
					b.t.Errorf("%+v", g)
				}
			}
		})
	}
}
