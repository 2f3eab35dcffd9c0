package throttle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

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
