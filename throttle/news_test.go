package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

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
