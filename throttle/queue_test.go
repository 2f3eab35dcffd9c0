package throttle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// "Queue puts a waiter in its queue, whatever its limits would admit now": it is charged nothing, and
// stands behind those who came before it.
func TestQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency} {
		rule := policy.Rule{Name: "r", Algorithm: kind, Limit: 10}
		if kind == policy.TokenBucket {
			rule.Burst = 10
		}
		if kind != policy.Concurrency {
			rule.Per = sec
		}
		onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
			queue := func(ticket string) {
				b.t.Helper()
				d, err := b.Waitlist().Queue(ctx, Request{Scope: "p/a", MaxDelay: sec, Turn: Turn{WaiterID: ticket, MaxDelayQueued: sec}})
				if err != nil || d.Allowed || !d.Position.Waits {
					b.t.Fatalf("%s of %s: %+v, %v", ticket, kind, d, err)
				}
			}
			for i := range 3 {
				queue(fmt.Sprint(i))
			}
			queue("1") // stays where it is
			woken := b.dispatch(DispatchRequest{Provider: "p", Max: 2})
			if strings.Join(tickets(placesOf(woken.Granted)), " ") != "0 1" {
				b.t.Fatalf("%s: %+v are released", kind, woken.Granted)
			}
			queue("1") // goes back to its place, before the one behind it
			queue("3")
			if d := b.decide(Request{Scope: "p/a", Turn: Turn{WaiterID: "0"}}); !d.Allowed || d.Rules[0].Remaining != 9 {
				b.t.Errorf("%s: %+v: the others were charged", kind, d)
			}
			b.inLine("p/a", []string{"1", "2", "3"})
		})
	}
}

// "They … are left to others; who is behind them in order does not wait": they are released as soon as somebody may.
func TestLeave(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}), func(b *bench) {
		for i := range 4 {
			scope := fmt.Sprintf("p/%c", 'a'+i%2)
			if d, err := b.Waitlist().Queue(ctx, Request{Scope: scope, Turn: Turn{WaiterID: fmt.Sprint(i)}}); err != nil || !d.Position.Waits {
				b.t.Fatalf("%+v, %v", d, err)
			}
		}
		req := DispatchRequest{Provider: "p", Max: 10, Skip: func(scope string) bool { return scope == "p/a" }}
		woken := b.dispatch(req)
		if strings.Join(tickets(placesOf(woken.Granted)), " ") != "1 3" || !woken.Waiting {
			b.t.Errorf("%+v: want those of p/b", woken)
		}
		if woken.Next <= 0 {
			b.t.Error("it is to look again at once, for nobody")
		}
		b.pass(sec)
		req.Skip = nil
		if woken = b.dispatch(req); strings.Join(tickets(placesOf(woken.Granted)), " ") != "0 2" {
			b.t.Errorf("%+v: want those of p/a", woken)
		}
	})
}
