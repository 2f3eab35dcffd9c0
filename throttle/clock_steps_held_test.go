package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

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
