package throttle

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// A tenant whose own rule binds it for long stands in nobody's way, planned or not.
func TestPlannedTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Rules:  []policy.Rule{{Name: "all", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 10}},
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, policy, func(b *bench) {
		b.decide(Request{Scope: "p/a"})
		placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p/a", ID: "t"}}, 0, 0)
		if err != nil || !placed[0].Waits {
			b.t.Fatalf("%+v, %v; its rule is spent", placed, err)
		}
		if d := b.decide(Request{Scope: "p/b", Turn: Turn{WaiterID: "u"}}); !d.Allowed {
			b.t.Errorf("denied, behind one that waits for a rule of its own: %+v", d.Position)
		}
	})
}

// A limit that was raised wakes those who wait, for however many rules.
func TestRaisedLimitWakesAll(t *testing.T) {
	t.Parallel()
	limits := func(limit int64) *policy.Policy {
		p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
			"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: limit, Per: sec}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	onBoth(t, Config{}, limits(0), func(b *bench) {
		const scopes = 100
		for i := range scopes {
			b.decide(Request{Scope: fmt.Sprintf("p/%d", i), Turn: Turn{WaiterID: fmt.Sprint(i)}})
		}
		for range 10 { // until each is in the round of its own rule, for an hour
			if _, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: scopes}); err != nil {
				b.t.Fatal(err)
			}
		}
		raised, err := New(b.rdb, limits(1), b.cfg)
		if err != nil {
			b.t.Fatal(err)
		}
		raised.clock = b.clock
		released := 0
		for calls := range 40 {
			woken, err := raised.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: scopes, CheckAll: calls == 0})
			if err != nil {
				b.t.Fatal(err)
			}
			released += len(woken.Granted)
		}
		if released != scopes {
			b.t.Errorf("%d of %d were released", released, scopes)
		}
	})
}

// However many wait, a call that looks at all of them, since limits have changed, looks at some; the next go on.
func TestChangedLimitsAreLookedAtInParts(t *testing.T) {
	t.Parallel()
	limits := func(limit int64) *policy.Policy {
		p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
			"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: limit, Per: sec}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
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
	raised, err := New(b.rdb, limits(1), b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	raised.clock = b.clock
	due := func() int64 { return b.rdb.ZCount(ctx, scheduleKey(b.provider("p")), "-inf", b.clock()).Val() }
	if n := due(); n > 1 {
		t.Fatalf("%d are due, and all of them wait for an hour", n)
	}
	for calls := range 2 * scopes {
		before := due()
		d, err := raised.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", CheckAll: calls == 0})
		if err != nil {
			t.Fatal(err)
		}
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

// Who goes straight to asynq has its start. However late it comes, it has its turn still: before those who came since.
func TestStraightHasItsTurn(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 2, Per: sec}), func(b *bench) {
		placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p", ID: "a"}, {Scope: "p", ID: "b"}, {Scope: "p", ID: "c"}, {Scope: "p", ID: "d"}}, 0, 0)
		if err != nil || placed[0].Waits || placed[1].Waits || !placed[2].Waits || !placed[3].Waits {
			b.t.Fatalf("%+v, %v; the rule has two units", placed, err)
		}
		if d := b.dispatch(DispatchRequest{Max: 8}); len(d.Granted) > 0 {
			b.t.Errorf("%v was granted what those have who went straight", d.Granted)
		}
		b.now.Add(time.Hour.Microseconds())
		if d := b.dispatch(DispatchRequest{Max: 1}); len(d.Granted) != 1 || d.Granted[0].ID != "c" {
			b.t.Errorf("%v; nobody has come, and c is the first who waits", d.Granted)
		}
		if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "a"}}); !d.Allowed {
			b.t.Errorf("%+v; it had its turn, and there is a unit", d.Position)
		}
		if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "b"}}); !d.Position.Waits || d.Position.Ahead != 0 {
			b.t.Errorf("%+v; it had its turn, and goes before d", d.Position)
		}
	})
}

// Those who went straight to asynq and were not taken there, as those of a queue that stands still, go back before all who
// wait, by the starts that they had.
func TestStraightGoBackInOrder(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec}), func(b *bench) {
		var asks []Waiter
		var want []string
		for i := range 8 {
			ticket := fmt.Sprint(8 - i)
			asks, want = append(asks, Waiter{Scope: "p", ID: ticket}), append(want, ticket)
		}
		placed, err := b.Waitlist().Join(ctx, asks, 0, 45*time.Millisecond)
		if err != nil || placed[4].Waits || !placed[5].Waits {
			b.t.Fatalf("%+v, %v; five starts are near", placed, err)
		}
		b.pass(5 * sec)
		var unused []WaiterRef
		for _, a := range asks[:5] {
			unused = append(unused, a.Ref())
		}
		rand.Shuffle(len(unused), func(i, j int) { unused[i], unused[j] = unused[j], unused[i] })
		b.dispatch(DispatchRequest{Unused: unused})
		b.inLine("p", want)
	})
}

// A call that gives a grant back and makes another writes the same state twice: its key lasts for as long as what was
// written last means something. It went 19 s too soon, and the bucket was full again.
func TestStateWrittenTwiceLasts(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 6, Per: time.Minute, Burst: 3}), func(b *bench) {
		if placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p", ID: "t", Cost: 2}}, 0, 0); err != nil || placed[0].Waits {
			b.t.Fatalf("%+v, %v", placed, err)
		}
		b.pass(10 * ms)
		if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "t"}, Cost: 2}); !d.Allowed {
			b.t.Fatalf("%+v", d)
		}
		key := b.provider("p") + ":r"
		state, ttl := b.rdb.Get(ctx, key).Val(), b.rdb.PTTL(ctx, key).Val()
		if means := us(number(state[1:]) - b.now.Load()); ttl < means {
			b.t.Errorf("the key lasts for %s, its state for %s", ttl, means)
		}
	})
}

// A schedule that was lost, as a key is that somebody deletes, is made anew when somebody asks or looks.
func TestLostScheduleHeals(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}), func(b *bench) {
		d := b.decide(Request{Scope: "p"})
		for _, ticket := range []string{"a", "b"} {
			b.decide(Request{Scope: "p", Turn: Turn{WaiterID: ticket}})
		}
		b.rdb.Del(ctx, scheduleKey(b.provider("p")))
		if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "b"}}); d.Allowed || !d.Position.Waits || d.Position.Look != 0 {
			b.t.Errorf("%+v of one that came back", d.Position)
		}
		b.nexts.of("p").vain = time.Time{}
		b.rdb.Del(ctx, scheduleKey(b.provider("p")))
		if d := b.dispatch(DispatchRequest{Max: 8}); !d.Waiting {
			b.t.Error("nobody looks again")
		}
		b.giveBack(d.Grant)
		if d := b.dispatch(DispatchRequest{Max: 8}); len(d.Granted) != 1 || d.Granted[0].ID != "a" {
			b.t.Errorf("%+v, and a is first", d)
		}
	})
}
