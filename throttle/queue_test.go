package throttle

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// "Queue puts a waiter in its queue, whatever its limits would admit now": it is charged nothing, and
// stands behind those who came before it.
func TestQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency} {
		rule := policy.Rule{Name: "r", Algorithm: kind, Limit: 10}
		if kind == policy.TokenBucket {
			rule.Burst = 10
		}
		if kind != policy.Concurrency {
			rule.Per = sec
		}
		onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
			queue := func(ticket string) {
				b.t.Helper()
				d, err := b.Waitlist().Queue(ctx, Request{Scope: "p/a", MaxDelay: sec, Turn: Turn{WaiterID: ticket, MaxDelayQueued: sec}})
				if err != nil || d.Allowed || !d.Position.Waits {
					b.t.Fatalf("%s of %s: %+v, %v", ticket, kind, d, err)
				}
			}
			for i := range 3 {
				queue(fmt.Sprint(i))
			}
			queue("1") // stays where it is
			woken := b.dispatch(DispatchRequest{Provider: "p", Max: 2})
			if strings.Join(tickets(placesOf(woken.Granted)), " ") != "0 1" {
				b.t.Fatalf("%s: %+v are released", kind, woken.Granted)
			}
			queue("1") // goes back to its place, before the one behind it
			queue("3")
			if d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}}); !d.Allowed || d.Rules[0].Remaining != 9 {
				b.t.Errorf("%s: %+v: the others were charged", kind, d)
			}
			b.inLine("p/a", []string{"1", "2", "3"})
		})
	}
}

// "A scope that meets no rule has no queue."
func TestQueueWithoutRules(t *testing.T) {
	t.Parallel()
	limits, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"q": {}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, limits, func(b *bench) {
		if d, err := b.Waitlist().Queue(ctx, Request{Scope: "p/a", Turn: Turn{WaiterID: "1"}}); err != nil || !d.Allowed {
			b.t.Errorf("%+v, %v", d, err)
		}
	})
}

// However many scopes are left to others, who is behind them has its turn, where there is room for one alone.
func TestLeaveManyForOne(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1000, Per: sec}), func(b *bench) {
		var asks []Waiter
		for i := range 60 {
			asks = append(asks, Waiter{Scope: fmt.Sprintf("p/t/%02d", i), ID: "a"})
		}
		b.decide(Request{Scope: "p/first", Cost: 1000})
		if _, err := b.Waitlist().Join(ctx, append(asks, Waiter{Scope: "p/u", ID: "b"}), 0, 0); err != nil {
			b.t.Fatal(err)
		}
		b.pass(sec)
		req := DispatchRequest{Max: 1, Skip: func(scope string) bool { return scope != "p/u" }}
		for range 10 {
			if got := b.dispatch(req).Granted; len(got) > 0 {
				return
			}
		}
		b.t.Error("it was not granted in ten calls")
	})
}

// "They … are left to others; who is behind them in order does not wait": they are released as soon as somebody may.
func TestLeave(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}), func(b *bench) {
		for i := range 4 {
			scope := fmt.Sprintf("p/%c", 'a'+i%2)
			if d, err := b.Waitlist().Queue(ctx, Request{Scope: scope, Turn: Turn{WaiterID: fmt.Sprint(i)}}); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		req := DispatchRequest{Provider: "p", Max: 10, Skip: func(scope string) bool { return scope == "p/a" }}
		woken := b.dispatch(req)
		if strings.Join(tickets(placesOf(woken.Granted)), " ") != "1 3" || !woken.Waiting {
			b.t.Errorf("%+v: want those of p/b", woken)
		}
		if woken.Next <= 0 {
			b.t.Error("it is to look again at once, for nobody")
		}
		b.pass(sec)
		req.Skip = nil
		if woken = b.dispatch(req); strings.Join(tickets(placesOf(woken.Granted)), " ") != "0 2" {
			b.t.Errorf("%+v: want those of p/a", woken)
		}
	})
}

// A task that was granted its start, came too late, and starts under another limit may bring the next start of its rule
// nearer than who waits for that was told: it is looked at again.
func TestTooLateUnderAQuickerLimit(t *testing.T) {
	t.Parallel()
	daily := func(limit int64) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("0 0 * * *", "UTC"), Spread: true}
	}
	onBoth(t, Config{}, policyOf(t, daily(2)), func(b *bench) {
		first := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}})
		for _, ticket := range []string{"1", "2"} {
			if d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: ticket}}); !d.Position.Waits {
				b.t.Fatalf("%+v", d)
			}
		}
		b.giveBack(first.Grant)
		if woken := b.dispatch(DispatchRequest{Provider: "p", Max: 2}); len(woken.Granted) != 1 {
			b.t.Fatalf("%+v", woken)
		}
		b.pass(sec)
		quick := b.under(daily(86400))
		quick.dispatch(DispatchRequest{Provider: "p", Max: 1, CheckAll: true})
		if d := quick.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "1"}}); !d.Allowed {
			b.t.Fatalf("%+v", d)
		}
		b.pass(2 * sec)
		if woken := quick.dispatch(DispatchRequest{Provider: "p", Max: 1}); len(woken.Granted) != 1 {
			b.t.Errorf("%+v: its rule admits a start each second", woken)
		}
	})
}

// Who comes to the front when a task that stands still is parked is granted in the same call, though that has found nobody
// more of those who take what it takes.
func TestBehindOneThatStandsStill(t *testing.T) {
	t.Parallel()
	pol := policyOf(t,
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		policy.Rule{Name: "words", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100, Unit: "tokens"})
	onBoth(t, Config{}, pol, func(b *bench) {
		for _, req := range []Request{
			{Scope: "p/b", Costs: policy.Costs{"tokens": 1}, Turn: Turn{WaiterID: "first", Priority: 1}},
			{Scope: "p/a", Turn: Turn{WaiterID: "g/stands"}, Costs: policy.Costs{policy.Requests: 0, "tokens": 1}},
			{Scope: "p/a", Turn: Turn{WaiterID: "second"}, Costs: policy.Costs{"tokens": 1}},
		} {
			if d, err := b.Waitlist().Queue(ctx, req); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		woken := b.dispatch(DispatchRequest{Provider: "p", Max: 5, StalledGroups: []string{"g/"}})
		if got := strings.Join(tickets(placesOf(woken.Granted)), " "); got != "first second" {
			b.t.Errorf("%q are granted", got)
		}
	})
}

// A tenant whose tasks are left to others, or stand still, hides nobody below the same level: who comes to be listed there
// later in a call is granted by it.
func TestBehindOneThatIsLeft(t *testing.T) {
	t.Parallel()
	limits := policyOf(t,
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		policy.Rule{Name: "words", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100, Unit: "tokens"})
	for name, first := range map[string]string{"parked": "g/light", "granted": "light"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, limits, func(b *bench) {
				for _, req := range []Request{
					{Scope: "p/t/left", Costs: policy.Costs{"tokens": 1}, Turn: Turn{WaiterID: "others", Priority: 1}},
					{Scope: "p/t/b", Turn: Turn{WaiterID: first}, Costs: policy.Costs{policy.Requests: 0, "tokens": 1}},
					{Scope: "p/t/b", Turn: Turn{WaiterID: "second"}, Costs: policy.Costs{"tokens": 1}},
				} {
					if d, err := b.Waitlist().Queue(ctx, req); err != nil || !d.Position.Waits {
						b.t.Fatalf("%+v, %v", d, err)
					}
				}
				woken := b.dispatch(DispatchRequest{
					Provider: "p", Max: 5, StalledGroups: []string{"g/"}, Skip: func(scope string) bool { return scope == "p/t/left" },
				})
				want := map[string]string{"parked": "second", "granted": "light second"}[name]
				if got := strings.Join(tickets(placesOf(woken.Granted)), " "); got != want {
					b.t.Errorf("%q are granted, want %q; next in %s", got, want, woken.Next)
				}
			})
		})
	}
}

// What a task gives back that asks under an attempt id which is over is looked at for those behind it.
func TestRefundOfAnOverAttempt(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 1}), func(b *bench) {
		over := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}, ID: "attempt"})
		b.giveBack(over.Grant)
		for _, ticket := range []string{"0", "1"} {
			if d, err := b.Waitlist().Queue(ctx, Request{Scope: "p/a", Turn: Turn{WaiterID: ticket}}); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		if woken := b.dispatch(DispatchRequest{Max: 5}); len(woken.Granted) != 1 {
			b.t.Fatalf("%+v", woken)
		}
		if d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}, ID: "attempt"}); d.Allowed || d.Position.Look != 0 {
			b.t.Fatalf("%+v", d)
		}
		if woken := b.dispatch(DispatchRequest{Max: 5}); len(woken.Granted) != 1 || woken.Granted[0].ID != "1" {
			b.t.Errorf("%+v: the place is free", woken)
		}
	})
}

// A schedule that is lost is made anew, though a task that was granted its start asks before anybody sees it.
func TestLostScheduleIsSeen(t *testing.T) {
	t.Parallel()
	own := policy.ScopeConfig{Rules: []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 1}}}
	limits, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"a": own, "b": own}}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, limits, func(b *bench) {
		const each = 10
		for _, scope := range []string{"p/a", "p/b"} {
			for i := range each {
				if d, err := b.Waitlist().Queue(ctx, Request{Scope: scope, Turn: Turn{WaiterID: fmt.Sprint(i)}}); err != nil || !d.Position.Waits {
					b.t.Fatalf("%+v, %v", d, err)
				}
			}
		}
		b.dispatch(DispatchRequest{Max: each})
		b.pass(2 * sec)
		b.rdb.Del(ctx, scheduleKey(b.provider("p")))
		if d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}}); !d.Allowed {
			b.t.Fatalf("%+v", d)
		}
		b.pass(sec)
		if woken := b.dispatch(DispatchRequest{Max: each}); len(woken.Granted) != 2 {
			b.t.Errorf("%+v: one of each tenant should be granted", woken.Granted)
		}
	})
}
