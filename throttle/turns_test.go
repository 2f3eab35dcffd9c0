package throttle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// However many wait, a call that looks at all of them, since limits have changed, looks at some; the next go on.
func TestChangedLimitsAreLookedAtInParts(t *testing.T) {
	t.Parallel()
	limits := func(limit int64) *policy.Policy {
		p := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
			"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: limit, Per: sec}}},
		}}})
		return p
	}
	b := newBench(t, redistest.Client(t), Config{}, limits(0))
	const scopes = 4000
	asks := make([]Waiter, scopes)
	for i := range asks {
		asks[i] = Waiter{Scope: fmt.Sprint("p/", i), ID: "t"}
	}
	lineUpAll(b, asks)
	for range scopes / 60 {
		b.dispatch(DispatchRequest{}) // each waits for its own rule
	}
	raised := newLimiter(t, b.rdb, limits(1), b.cfg)
	raised.clock = b.clock
	due := func() int64 { return b.rdb.ZCount(ctx, scheduleKey(b.provider("p")), "-inf", b.clock()).Val() }
	if n := due(); n > 1 {
		t.Fatalf("%d are due, and all of them wait for an hour", n)
	}
	for calls := range 2 * scopes {
		before := due()
		d, err := raised.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", CheckAll: calls == 0})
		noError(t, err)
		if n := due() - before; n > scopes/2 {
			t.Fatalf("one call has had %d looked at", n)
		}
		if !b.rdb.HExists(ctx, b.provider("p")+"!meta", "*").Val() {
			break
		}
		if d.Next != 0 {
			t.Fatalf("not all were looked at, and the next call is in %s", d.Next)
		}
	}
	if n := b.rdb.ZCount(ctx, scheduleKey(b.provider("p")), "("+b.clock(), "+inf").Val(); n > 1 {
		t.Errorf("%d still wait for an hour", n)
	}
}

// One that is first behind many who wait for what it takes nothing of is not overlooked.
func TestBehindManyWhoWaitForAnother(t *testing.T) {
	t.Parallel()
	pol := policyOf(t,
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		policy.Rule{Name: "words", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"})
	words, calls := policy.Costs{"tokens": 20}, policy.Costs{policy.Requests: 1}
	for way, join := range ways {
		onBothIn(t, way, Config{}, pol, func(b *bench) {
			b.decide(Request{Scope: "p/x", Costs: words})
			for i := range 40 {
				b.decide(Request{Scope: fmt.Sprint("p/s", i), Costs: words, Turn: Turn{WaiterID: "t", Priority: 1}})
			}
			b.decide(Request{Scope: "p/z", Turn: Turn{WaiterID: "second"}, Costs: words})
			join(b, []Waiter{{Scope: "p/z", ID: "first", Costs: calls, Priority: 1}})
			if woken := b.dispatch(DispatchRequest{Max: 10}); len(woken.Granted) != 1 || woken.Granted[0].ID != "first" {
				b.t.Errorf("%+v: the one that takes no words should be released", woken)
			}
		})
	}
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

// Who is withdrawn leaves its queue, or its parked place. Who was granted its start keeps it, and what it was charged.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}), func(b *bench) {
		b.decide(Request{Scope: "p/a"})
		for _, id := range []string{"first", "second", "g/parked", "last"} {
			if d, err := b.Waitlist().Queue(ctx, Request{Scope: "p/a", Turn: Turn{WaiterID: id}}); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		standing := func(id string, wantQueued, wantGranted bool) {
			b.t.Helper()
			if queued, granted, err := b.Waitlist().Standing(ctx, Waiter{Scope: "p/a", ID: id}.Ref()); err != nil || queued != wantQueued || granted != wantGranted {
				b.t.Errorf("%s: queued %t, granted %t, %v; want %t, %t", id, queued, granted, err, wantQueued, wantGranted)
			}
		}
		b.pass(time.Hour)
		if one := b.dispatch(DispatchRequest{Max: 1}).Granted; len(one) != 1 || one[0].ID != "first" {
			b.t.Fatalf("%+v", one)
		}
		var all []WaiterRef
		for _, id := range []string{"first", "second", "unknown"} {
			all = append(all, WaiterRef{Scope: "p/a", ID: id})
		}
		b.dispatch(DispatchRequest{Withdrawn: all, StalledGroups: []string{"g/"}})
		standing("first", false, true)
		standing("second", false, false)
		standing("last", true, false)
		if d := b.decide(Request{Scope: "p/b"}); d.Allowed {
			b.t.Error("two runs in an hour: the first one's units came back")
		}
		b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "first"}})
		b.pass(time.Hour)
		b.dispatch(DispatchRequest{Max: 1, StalledGroups: []string{"g/"}}) // which parks one, and grants the last
		standing("g/parked", true, false)
		b.dispatch(DispatchRequest{Withdrawn: []WaiterRef{{Scope: "p/a", ID: "g/parked"}}})
		standing("g/parked", false, false)
	})
}
