package throttle

import (
	"fmt"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// One that is first behind many who wait for what it takes nothing of is not overlooked.
func TestBehindManyWhoWaitForAnother(t *testing.T) {
	t.Parallel()
	pol := policyOf(t,
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		policy.Rule{Name: "words", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"})
	words, calls := policy.Costs{"tokens": 20}, policy.Costs{policy.Requests: 1}
	for name, ask := range map[string]func(b *bench){
		"asks": func(b *bench) {
			b.decide(Request{Scope: "p/z", Costs: calls, Turn: Turn{WaiterID: "first", Priority: 1}})
		},
		"lines up": func(b *bench) {
			if _, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p/z", ID: "first", Costs: calls, Priority: 1}}, 0, 0); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, pol, func(b *bench) {
				b.decide(Request{Scope: "p/x", Costs: words})
				for i := range 40 {
					b.decide(Request{Scope: fmt.Sprint("p/s", i), Costs: words, Turn: Turn{WaiterID: "t", Priority: 1}})
				}
				b.decide(Request{Scope: "p/z", Turn: Turn{WaiterID: "second"}, Costs: words})
				ask(b)
				woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 10})
				if err != nil || len(woken.Granted) != 1 || woken.Granted[0].ID != "first" {
					b.t.Errorf("%+v, %v: the one that takes no words should be released", woken, err)
				}
			})
		})
	}
}
