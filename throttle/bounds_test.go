package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// "What comes back can be spent at once, and so can the attempt id": the second grant under an id is settled and refunded like
// any other, and a refund of the first that is sent again gives none of it back.
func TestRefundedIDIsFree(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, window10()), func(b *bench) {
		ask := func(left int64) Grant {
			b.t.Helper()
			d := b.decide(Request{Scope: "p/x", ID: "mine"})
			if !d.Allowed || d.Rules[0].Remaining != left {
				b.t.Errorf("%+v", d)
			}
			return d.Grant
		}
		first := ask(9)
		b.giveBack(first)
		b.pass(ms)
		second := ask(9)
		b.giveBack(first)
		if said := b.settled(second, policy.Costs{policy.Requests: 3}); said != "r 0 2 0" || b.left() != "r 7" {
			b.t.Errorf("%q; %s", said, b.left())
		}
		for range 2 {
			if b.giveBack(second); b.left() != "r 10" {
				b.t.Errorf("%s", b.left())
			}
		}
		if said := b.settled(second, policy.Costs{policy.Requests: 3}); said != "" {
			b.t.Errorf("settled after it was given back: %q", said)
		}
	})
}

// "No rule ever holds more than twice its capacity": units that were rolled over are part of that once.
func TestDebtCountsRolledOverUnitsOnce(t *testing.T) {
	t.Parallel()
	rule := daily(2, "UTC")
	rule.Rollover = 15
	onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
		b.atTime("2026-01-10T12:00:00Z")
		b.giveBack(b.decide(Request{Scope: "p/x"}).Grant)
		b.atTime("2026-01-11T12:00:00Z")
		d := b.decide(Request{Scope: "p/x"})
		if d.Rules[0].Remaining != 3 {
			b.t.Fatalf("%+v", d)
		}
		if said := b.settled(d.Grant, policy.Costs{policy.Requests: 100}); said != "r 0 5 94" { // 2 + 2 + 2 in all
			b.t.Error(said)
		}
	})
}

// A debt under a spread calendar puts off what comes after a start ahead, and that start's refund leaves the debt's part of the pace.
func TestDebtKeepsThePace(t *testing.T) {
	t.Parallel()
	rule := daily(1000, "UTC")
	rule.Spread = true
	onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
		b.atTime("2026-01-10T12:00:00Z")
		const pace = 12 * time.Hour / 1000
		first := b.decide(Request{Scope: "p/x"}).Grant
		ahead := b.decide(Request{Scope: "p/x", MaxDelay: MaxDelayLimit})
		near := func(what string, units time.Duration) {
			b.t.Helper()
			if got := b.peek().RetryAfter; got < units*pace-sec || got > units*pace+sec {
				b.t.Errorf("%s: the next starts in %s, want %s", what, got, units*pace)
			}
		}
		near("with a start ahead", 2)
		b.settled(first, policy.Costs{policy.Requests: 3})
		near("with a debt of two", 4)
		b.giveBack(ahead.Grant)
		near("without the start ahead", 3)
		b.pass(3*pace + sec)
		b.grants(Request{Scope: "p/x"}, 0)
	})
}

// "Changing a limit keeps what has been spent": the window that a first start opened goes on under another limit.
func TestOpenedWindowIsKept(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 4, Per: 10 * ms, OpensOnUse: true}
	onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
		b.decide(Request{Scope: "p/x", Cost: 4})
		b.pass(3 * ms)
		larger := rule
		larger.Limit = 9
		other := b.under(larger)
		other.grants(Request{Scope: "p/x", Cost: 5}, 0)
		other.grants(Request{Scope: "p/x"}, 7*ms) // it would be ten units in ten milliseconds
		b.pass(7 * ms)
		other.grants(Request{Scope: "p/x", Cost: 9}, 0)
	})
}

// "A run that began late all the same is charged for when it began": a full window admits nothing too soon after it.
func TestLateRunsFillTheirWindow(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 2, Per: sec}
	bubble(t, Config{}, policyOf(t, rule), nil, func(t *testing.T, _ *cable, l *Limiter) {
		grants := []Grant{grantedBy(t, l).Grant, grantedBy(t, l).Grant}
		<-time.After(900 * ms)
		for _, g := range grants {
			start, _ := l.StartOf(g)
			if late := time.Since(start); late != 900*ms {
				t.Errorf("late by %s", late)
			}
			noError(t, l.ReportBegun(t.Context(), g, time.Now()))
		}
		<-time.After(200 * ms)
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || d.Allowed || d.RetryAfter < 800*ms {
			t.Errorf("two runs began within the last second: %+v, %v", d, err)
		}
		<-time.After(900 * ms)
		noError(t, allowed(l, "p/x"))
		start, latest := l.StartOf(grants[0])
		if latest != start.Add(defaultPad/2) {
			t.Errorf("in time until %s after the start", latest.Sub(start))
		}
		if err := l.ReportBegun(t.Context(), grants[0], latest); err != nil { // in time: nothing moves
			t.Error(err)
		}
		noError(t, allowed(l, "p/x"))
	})
}

// "A clock that steps forward admits one extra limit at most, once. After a step back nobody waits longer than its window, and at
// most one extra limit is admitted, once."
func TestClockSteps(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"token bucket": bucket(10, 10), "sliding window": {Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}, "coarse": {Algorithm: policy.SlidingWindow, Limit: 200, Per: sec},
		"fixed window": {Algorithm: policy.FixedWindow, Limit: 10, Per: sec}, "on use": {Algorithm: policy.FixedWindow, Limit: 10, Per: sec, OpensOnUse: true},
		"calendar": {Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("* * * * *", "UTC")},
	} {
		for _, step := range []time.Duration{-time.Hour, -300 * ms, 300 * ms, time.Hour} {
			rule.Name = "r"
			onBothIn(t, name+" "+step.String(), Config{}, policyOf(t, rule), func(b *bench) {
				fill := func() (n int64) {
					for b.decide(Request{Scope: "p/x"}).Allowed {
						n++
					}
					return n
				}
				b.at(20_500_000)
				if n := fill(); n != rule.Limit {
					b.t.Fatalf("%d at first", n)
				}
				b.pass(step)
				if n := fill(); n > rule.Limit {
					b.t.Errorf("%d more after the step", n)
				}
				per := rule.Per
				if per == 0 {
					per = time.Minute
				}
				wait := b.peek().RetryAfter
				if wait > per {
					b.t.Errorf("the next waits for %s", wait)
				}
				b.pass(per)
				if n := fill(); n == 0 || n > rule.Limit {
					b.t.Errorf("%d a window later", n)
				}
			})
		}
	}
}
