package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// Thousands of scopes line up in one call, more than one command of a script can have
// arguments for, and each has its turn.
func TestThousandsOfScopesLineUp(t *testing.T) {
	t.Parallel()
	const scopes = 5000
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, bucket(1_000_000, 1))) // whose Lua has such a bound
	b.decide(Request{Scope: "p/first", ID: NewID()})
	asks := make([]Waiter, scopes)
	for i := range asks {
		asks[i] = Waiter{Scope: fmt.Sprint("p/", i), ID: "a"}
	}
	placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	for i, p := range placed {
		if !p.Waits || p.Err != nil || p.Expected < 0 {
			b.t.Fatalf("%s: %+v", asks[i].Scope, p)
		}
	}
	if got, err := b.Inspect(ctx, "p"); err != nil || got.Waiting != scopes || got.Queues != scopes {
		b.t.Errorf("%+v, %v", got, err)
	}
	b.at(2 * time.Second.Microseconds())
	woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Lead: time.Second, Max: 10, CheckAll: true})
	if err != nil || len(woken.Granted) == 0 {
		b.t.Errorf("%+v, %v", woken, err)
	}
}

// "All but a few of many": those are granted as soon as somebody dispatches, in their order.
func TestFewOfManyGoStraight(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1000, Per: sec}), func(b *bench) {
		var asks []Waiter
		var want []string
		for i := range 2 * joinBatch {
			asks = append(asks, Waiter{Scope: "p/x", ID: fmt.Sprint(i)})
		}
		placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		for i, p := range placed {
			if p.Expected > us(1) {
				b.t.Errorf("%d: %+v, though there are units for all", i, p)
			}
			if p.Waits {
				want = append(want, asks[i].ID)
			}
		}
		if len(want) != 2*joinBatch-mostDirect || placed[0].Waits {
			b.t.Errorf("%d of %d wait, the first: %t", len(want), len(asks), placed[0].Waits)
		}
		var got []string
		for _, g := range b.dispatch(DispatchRequest{Max: len(asks)}).Granted {
			got = append(got, g.ID)
		}
		if !slices.Equal(got, want) {
			b.t.Errorf("got %v, want %v", got, want)
		}
	})
}

// "No others start sooner than near", since they are about to be enqueued; and they stand in nobody's way until then.
func TestFewOfManyGoStraightAndOthersSoon(t *testing.T) {
	t.Parallel()
	const near, lead = 150 * ms, 20 * ms
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1000, Per: sec}), func(b *bench) {
		var asks []Waiter
		for i := range joinBatch + 1 {
			asks = append(asks, Waiter{Scope: fmt.Sprint("p/", i%20), ID: fmt.Sprint(i)})
		}
		placed, err := b.Waitlist().Join(ctx, asks, lead, near)
		if err != nil || placed[mostDirect-1].Waits || !placed[mostDirect+3].Waits {
			b.t.Fatalf("%+v, %v", placed, err)
		}
		if d := b.decide(Request{Scope: "p/other", Turn: Turn{WaiterID: "o"}}); !d.Allowed {
			b.t.Errorf("another is held up: %+v", d)
		}
		req := DispatchRequest{Max: len(asks), Lead: lead}
		if got := b.dispatch(req); len(got.Granted) != 0 || got.Next != near-lead {
			b.t.Errorf("%+v, before they are there", got)
		}
		b.pass(near - lead)
		if got := b.dispatch(req).Granted; len(got) != len(asks)-mostDirect {
			b.t.Errorf("%d were granted of %d", len(got), len(asks)-mostDirect)
		}
	})
}

// Many line up in calls of a few each, in one round trip, and in their order: also where the server does not know the
// script yet, and where other rules hold by the time that they come.
func TestLineUpInPartsKeepsTheOrder(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, rdb redis.UniversalClient) {
		t.Parallel()
		b := newBench(t, rdb, Config{}, policyOf(t, minutely(1)))
		b.atTime("2026-01-10T00:00:30Z")
		b.decide(Request{Scope: "p/x"})
		var asks []Waiter
		var want []string
		for i := range 3*joinBatch + 1 {
			asks = append(asks, Waiter{Scope: "p/x", ID: fmt.Sprint(i)})
			want = append(want, ":"+fmt.Sprint(i))
		}
		b.atTime("2026-01-10T00:01:30Z")
		clear(b.scopes.known)
		b.skews.byProvider = nil // the process's own clock is months off
		b.scopes.now = func(provider string) time.Time { return b.skews.of(provider).toServer(time.Now()) }
		placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		if placed[0].Waits || !placed[1].Waits || placed[1].Expected != 30*sec {
			b.t.Errorf("%+v, %+v; the minute has one, and lasts 30 s more", placed[0], placed[1])
		}
		if got := b.rdb.ZRange(ctx, b.provider("p")+"/x!queue", 0, -1).Val(); !slices.Equal(got, want[1:]) {
			b.t.Errorf("they stand as %v", got)
		}
	}
	// Of its own, since it does not know the script.
	t.Run("redis", func(t *testing.T) { test(t, redistest.NewServer(t).Client(t)) })
	t.Run("miniredis", func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		test(t, rdb)
	})
}
