package throttle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// "A task that a lowered limit can never admit waits beside its line": priority 5 is before
// priority 0 again when the limit is what it was, and nobody waits for it meanwhile.
func TestTooDearForTheRuleKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limit := func(limit int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: sec, Burst: limit})
	}
	onBoth(t, Config{}, limit(10), func(b *bench) {
		b.decide(Request{Scope: "p/a", ID: NewID(), Cost: 10})
		lineUpAll(b, []Waiter{
			{Scope: "p/a", ID: "cheap"}, {Scope: "p/a", ID: "dear first", Cost: 10, Priority: 5},
			{Scope: "p/a", ID: "dear second", Cost: 9, Priority: 5}, {Scope: "p/a", ID: "dear last", Cost: 8},
			{Scope: "p/b", ID: "other"},
		})
		parked := func() []WaiterRef {
			places, err := b.Waitlist().Parked(ctx, "p", 0, 100)
			noError(b.t, err)
			return places
		}
		var order []string
		look := func(back []WaiterRef) {
			b.t.Helper()
			woken := b.dispatch(DispatchRequest{Max: 1, CheckAll: true, Unpark: back})
			for _, p := range woken.Granted {
				b.decide(Request{Scope: p.Scope, Turn: Turn{WaiterID: p.ID}, Cost: map[string]int64{"dear first": 10, "dear second": 9, "dear last": 8}[p.ID], ID: NewID()})
				order = append(order, p.ID)
			}
		}
		b.SetPolicy(limit(5))
		for range 3 {
			b.pass(sec)
			look(parked()) // which are too dear, and hold up nobody when they are put back
		}
		if got := fmt.Sprint(order); got != "[cheap other]" && got != "[other cheap]" {
			b.t.Fatalf("%s were released while the others are too dear", got)
		}
		b.decide(Request{Scope: "p/c", ID: NewID(), Cost: 4})
		lineUpAll(b, []Waiter{{Scope: "p/a", ID: "later"}})
		order = nil
		b.SetPolicy(limit(10))
		look(parked())
		for range 4 {
			b.pass(sec)
			look(nil)
		}
		if got := fmt.Sprint(order); got != "[dear first dear second dear last later]" {
			b.t.Errorf("%s is the order when the limit is what it was", got)
		}
	})
}

// "200 a call": no call is held up by how many are too dear.
func TestParksSomeAtATime(t *testing.T) {
	t.Parallel()
	limit := func(limit int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: sec, Burst: limit})
	}
	onBoth(t, Config{}, limit(10), func(b *bench) {
		const dear = 500
		b.decide(Request{Scope: "p/a", ID: NewID(), Cost: 10})
		asks := make([]Waiter, dear)
		for i := range asks {
			asks[i] = Waiter{Scope: "p/a", ID: fmt.Sprint("g/", i), Cost: 10}
		}
		lineUpAll(b, asks)
		b.SetPolicy(limit(5))
		for calls := 1; calls <= 3; calls++ {
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, CheckAll: true})
			if err != nil || len(woken.Granted) > 0 || calls < 3 && woken.Next > 0 {
				b.t.Fatalf("%+v, %v", woken, err)
			}
			places, err := b.Waitlist().Parked(ctx, "p", 0, 2*dear)
			tasks := slices.DeleteFunc(places, func(p WaiterRef) bool { return p.ID == "g/" })
			if want := min(200*calls, dear); err != nil || len(tasks) != want {
				b.t.Errorf("after %d calls %d are parked, not %d: %v", calls, len(tasks), want, err)
			}
		}
	})
}
