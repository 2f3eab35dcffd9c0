package throttle

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// A look goes on when the clock steps back under a bucket whose limit is 0.
func TestClockStepsUnderASuspendedBucket(t *testing.T) {
	t.Parallel()
	bucket := policy.Rule{Name: "b", Algorithm: policy.TokenBucket, Limit: 5, Per: sec, Burst: 3}
	suspended := bucket
	suspended.Limit = 0
	onBoth(t, Config{}, policyOf(t, bucket), func(b *bench) {
		for i := range 4 {
			b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: fmt.Sprint("t", i)}})
		}
		b.dispatch(DispatchRequest{Max: 1})
		b.SetPolicy(policyOf(t, suspended))
		b.dispatch(DispatchRequest{Max: 1})
		b.pass(-time.Minute)
		for range 3 {
			b.dispatch(DispatchRequest{Max: 1, CheckAll: true})
			b.pass(sec)
		}
		b.SetPolicy(policyOf(t, bucket))
		b.dispatch(DispatchRequest{Max: 1, CheckAll: true}) // sees what is stored
		b.pass(sec)
		if woken := b.dispatch(DispatchRequest{Max: 1, CheckAll: true}); len(woken.Granted) != 1 {
			b.t.Errorf("%+v; its limit is back", woken)
		}
	})
}

// renewed renews a grant's leases, and says whether they are still its own.
func (b *bench) renewed(d Decision) bool {
	b.t.Helper()
	keys, leases, _ := d.Grant.plan.leaseKeys()
	reply, err := scriptOf(lua.Renew, "").Run(ctx, b.rdb, keys, append([]any{b.clock(), d.Grant.id}, leases...)...).Int64Slice()
	if err != nil {
		b.t.Fatal(err)
	}
	return reply[0] == 1
}

// A live run that renews its lease in time keeps its place, however often a step back is looked at.
func TestClockStepsLeaveLiveRunsTheirPlaces(t *testing.T) {
	t.Parallel()
	one := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: 60 * sec}
	slow := policy.Rule{Name: "s", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 1}
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"x": {Rules: []policy.Rule{one}}, "y": {Rules: []policy.Rule{slow}}}}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, policy, func(b *bench) {
		d := b.decide(Request{Scope: "p/x", ID: "lives"})
		b.decide(Request{Scope: "p/y"})
		b.decide(Request{Scope: "p/y", Turn: Turn{WaiterID: "slow"}})
		b.dispatch(DispatchRequest{Max: 1}) // the next look is an hour off
		for range 28 {
			b.pass(20 * sec)
			b.renewed(d)
		}
		b.pass(-865 * sec) // 305 before the last look
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "waits"}})
		for i := range 60 {
			if woken := b.dispatch(DispatchRequest{Max: 1}); len(woken.Granted) > 0 {
				b.t.Fatalf("its place is given away %d s after the step", i)
			}
			if i%20 == 19 && !b.renewed(d) {
				b.t.Fatalf("its lease is lost %d s after the step", i)
			}
			b.pass(sec)
		}
	})
}

// What died between two steps back keeps its place no longer than a lease, too.
func TestClockStepsTwice(t *testing.T) {
	t.Parallel()
	one := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: 30 * sec}
	onBoth(t, Config{}, policyOf(t, one), func(b *bench) {
		b.decide(Request{Scope: "p/x", ID: "first"})
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "second"}})
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "third"}})
		b.dispatch(DispatchRequest{Max: 1})
		for _, ticket := range []string{"second", "third"} { // which die
			b.pass(-time.Hour)
			b.dispatch(DispatchRequest{Max: 1})
			b.pass(31 * sec)
			if woken := b.dispatch(DispatchRequest{Max: 1}); len(woken.Granted) != 1 || woken.Granted[0].ID != ticket {
				b.t.Fatalf("%+v; %s has waited for a lease and a second", woken, ticket)
			}
			if d := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: ticket}}); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
		}
	})
}

// What was granted before a step back gives back nothing after it, since its units have moved: a window never
// has more than its limit. Where the clock has gone on as ever all of it comes back.
func TestGivingBackAfterAStep(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: 10 * sec}
	for _, step := range []time.Duration{0, 2 * sec, 11 * sec, 30 * sec} {
		for _, settles := range []bool{false, true} {
			t.Run(fmt.Sprint(step, settles), func(t *testing.T) {
				t.Parallel()
				onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
					g := b.decide(Request{Scope: "p/x", Cost: 5}).Grant
					b.pass(-step)
					n := b.admitted("p/x", 1)
					for range step / sec {
						b.pass(sec)
						n += b.admitted("p/x", 1)
					}
					n += b.admitted("p/x", 10)
					if step > 0 { // the time went by here, too
						g.came = time.Now().Add(-step)
					}
					if settles {
						if _, err := b.Settle(ctx, g, policy.Costs{policy.Requests: 0}); err != nil {
							b.t.Fatal(err)
						}
					} else {
						b.giveBack(g)
					}
					back := b.admitted("p/x", 20)
					if step == 0 && n+back != 10 || step > 0 && back != 0 {
						b.t.Errorf("%d were admitted, and %d more after it was given back", n, back)
					}
				})
			})
		}
	}
}

// A damaged moment of a step is dropped as any other value is.
func TestDamagedStep(t *testing.T) {
	t.Parallel()
	bucket := policy.Rule{Name: "b", Algorithm: policy.TokenBucket, Limit: 5, Per: sec, Burst: 1}
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, policyOf(t, bucket), func(b *bench) {
		b.decide(Request{Scope: "p/x"})
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "waits"}})
		b.rdb.HSet(ctx, b.provider("p")+"!meta", "^", "text")
		b.pass(2 * sec)
		if woken := b.dispatch(DispatchRequest{Max: 1}); len(woken.Granted) != 1 {
			b.t.Errorf("%+v", woken)
		}
	})
}

// A cut of a limit that a step back begins anew begins so once, while everything is granted too.
func TestCutAfterAStepIsKeptByGrants(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 100, Per: sec}), func(b *bench) {
		if _, err := b.sendSignals(ctx, b.plan("p/x"), []signal{{"cut", ":r", [5]int64{500_000, 0, 50_000, 100_000, 1_000_000}}}); err != nil {
			b.t.Fatal(err)
		}
		b.pass(-time.Hour)
		for range 15 {
			b.admitted("p/x", 30)
			b.pass(sec)
		}
		if n := b.admitted("p/x", 200); n != 100 {
			b.t.Errorf("%d are admitted 15 s after the first decision since the step, of a cut that grows back in ten", n)
		}
	})
}
