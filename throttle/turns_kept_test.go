package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// age lets time pass for keys too: a key that would have expired meanwhile is gone.
func (b *bench) age(d time.Duration) {
	b.t.Helper()
	b.pass(d)
	keys, err := b.rdb.Keys(ctx, b.cfg.Prefix+":*").Result()
	noError(b.t, err)
	for _, key := range keys {
		left := b.rdb.PTTL(ctx, key).Val()
		switch {
		case left < 0:
			b.t.Errorf("%s has no TTL", key)
		case left > d:
			b.rdb.PExpire(ctx, key, left-d)
		default:
			b.rdb.Del(ctx, key)
		}
	}
}

// Tasks wait for days for what no clock tells, and looks go on all the while: all that is known of them stays, and so does their order.
func TestThreeDaysBehindWhatNoClockTells(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
	none := window
	none.Limit = 0
	one := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: 24 * time.Hour}
	for name, test := range map[string]struct{ before, after *policy.Policy }{
		"no units":  {policyOf(t, none), policyOf(t, window)},
		"no places": {policyOf(t, one), policyOf(t, policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 10})},
	} {
		onBothIn(t, name, Config{}, test.before, func(b *bench) {
			runs := func() { // and holds its place, where there are any
				if name == "no places" && !b.decide(Request{Scope: "p/z", ID: "run"}).Allowed {
					b.t.Fatal("it lost its place")
				}
			}
			runs()
			for i := range 4 {
				if d := b.decide(Request{Scope: fmt.Sprint("p/", i%2), Turn: Turn{WaiterID: fmt.Sprint(i)}}); !d.Position.Waits {
					b.t.Fatalf("%+v", d)
				}
			}
			keys := b.rdb.Keys(ctx, b.cfg.Prefix+":*!*").Val()
			if len(keys) != 5 {
				b.t.Fatalf("%q: two lines and three that they share", keys)
			}
			for range 3 * 24 * 4 {
				for range 2 {
					b.pass(5 * sec) // a look as each process has it
					b.looksOn()
				}
				b.age(15 * time.Minute)
				runs()
			}
			b.looksOn()
			if left := b.rdb.Exists(ctx, keys...).Val(); int(left) != len(keys) {
				b.t.Errorf("%d of %q are left", left, keys)
			}
			b.SetPolicy(test.after)
			if d := b.decide(Request{Scope: "p/2", Turn: Turn{WaiterID: "new"}}); d.Allowed {
				b.t.Error("a new task goes before those who wait")
			}
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 5, CheckAll: true})
			order := slices.DeleteFunc(tickets(placesOf(woken.Granted)), func(ticket string) bool { return ticket == "new" })
			if err != nil || fmt.Sprint(order) != "[0 1 2 3]" {
				b.t.Errorf("%v, %v: in the order in which they came", order, err)
			}
		})
	}
}

// looksOn has a look that sees that somebody waits, and releases nobody.
func (b *bench) looksOn() {
	b.t.Helper()
	if woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 4}); err != nil || len(woken.Granted) > 0 {
		b.t.Fatalf("%+v, %v", woken, err)
	}
}

func tickets(places []WaiterRef) (list []string) {
	for _, p := range places {
		list = append(list, p.ID)
	}
	return list
}

// A line lives until its last task comes by itself, however long that takes.
func TestLineOutlivesItsSafetyNet(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 1, Per: 60 * 24 * time.Hour}), func(b *bench) {
		b.decide(Request{Scope: "p/a"})
		d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "t"}})
		if d.Position.Expected < 24*time.Hour {
			b.t.Fatalf("expected in %v", d.Position.Expected)
		}
		line, net := b.provider("p")+"/a!queue", FallbackDelay(d.Position.Expected)
		if left := b.rdb.PTTL(ctx, line).Val(); left < net {
			b.t.Errorf("the line lives for %v, and its task comes in %v", left, net)
		}
	})
}
