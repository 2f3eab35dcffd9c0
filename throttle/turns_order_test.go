package throttle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Those whose turn had come, and who go back to their line together, stand there as they had stood:
// by the starts that they were granted, whichever of them comes back first.
func TestRejoinKeepsTheOrder(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec}), func(b *bench) {
		b.decide(Request{Scope: "p"})
		const held, behind = 8, 3
		starts := make([]time.Time, held)
		var want []string
		for i := range held {
			d := b.decide(Request{Scope: "p", MaxDelay: sec, Turn: Turn{WaiterID: fmt.Sprint(i), MaxDelayQueued: sec}})
			if !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
			starts[i] = d.starts()
			b.giveBack(d.Grant)
			b.decide(Request{Scope: "p", Cost: 1, MaxDelay: sec}) // its unit is somebody else's
			want = append(want, fmt.Sprint(i))
		}
		for i := range behind {
			b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint("behind ", i)}})
			want = append(want, fmt.Sprint("behind ", i))
		}
		for _, i := range rand.Perm(held) {
			if d, err := b.Waitlist().RequeueFront(ctx, Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(i), MissedStart: starts[i]}}); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		b.inLine("p", want)
	})
}

// inLine has all who wait be released, one after the other, and compares in which order.
func (b *bench) inLine(scope string, want []string) {
	b.t.Helper()
	var got []string
	for range 3 * len(want) {
		b.pass(sec)
		woken := b.dispatch(DispatchRequest{Max: len(want)})
		for _, p := range woken.Granted {
			got = append(got, p.ID)
			if d := b.decide(Request{Scope: scope, Turn: Turn{WaiterID: p.ID}, MaxDelay: sec}); !d.Allowed {
				b.t.Fatalf("%s: %+v", p.ID, d)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("the order is %q, want %q", got, want)
	}
}

// Tasks that come too late for what they were granted, and may not start by now, go back to their
// places, in whichever order they come.
func TestTooLateKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	policy := func(limit int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: sec})
	}
	onBoth(t, Config{}, policy(4), func(b *bench) {
		b.decide(Request{Scope: "p", Cost: 4})
		var want []string
		for i := range 6 {
			b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(i)}})
			want = append(want, fmt.Sprint(i))
		}
		b.pass(sec)
		if d := b.dispatch(DispatchRequest{Max: 4}); len(d.Granted) != 4 {
			b.t.Fatalf("%+v", d)
		}
		b.pass(10 * ms)
		b.SetPolicy(policy(0))
		for _, i := range rand.Perm(4) {
			if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(i)}, MaxDelay: sec}); !d.Position.Waits {
				b.t.Fatalf("%+v", d)
			}
		}
		b.SetPolicy(policy(4))
		b.dispatch(DispatchRequest{CheckAll: true})
		b.inLine("p", want)
	})
}

// "New tasks of a standing queue go behind the last of its tasks that is parked": places of a
// batch run ahead of the clock, and one who comes meanwhile is not before them.
func TestComersGoBehindTheParked(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 3600 * sec}), func(b *bench) {
		b.decide(Request{Scope: "p/a", ID: NewID()})
		asks := make([]Waiter, 100)
		for i := range asks {
			asks[i] = Waiter{Scope: "p/a", ID: fmt.Sprintf("g/%d", i)}
		}
		lineUpAll(b, asks)
		if _, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, CheckAll: true, StalledGroups: []string{"g/"}}); err != nil {
			b.t.Fatal(err)
		}
		b.pass(ms)
		late := Waiter{Scope: "p/a", ID: "g/late"}
		lineUpAll(b, []Waiter{late})
		places, err := b.Waitlist().Parked(ctx, "p", 0, 2*len(asks))
		if err != nil || len(places) < len(asks) {
			b.t.Fatalf("%d are parked, %v", len(places), err)
		}
		if _, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Unpark: places}); err != nil {
			b.t.Fatal(err)
		}
		if s, err := b.Waitlist().InspectWaiter(ctx, late); err != nil || !s.Waits || s.Ahead != int64(len(asks)) {
			b.t.Errorf("%+v, %v: want %d before it", s, err, len(asks))
		}
	})
}
