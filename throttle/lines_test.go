package throttle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

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
		noError(b.t, err)
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
