package throttle

import (
	"fmt"
	"testing"
	"time"
)

// "Of more than a look brings along, the next 32 four times a second": so all are looked at, and
// no look follows another without a pause.
func TestManyTooDear(t *testing.T) {
	t.Parallel()
	const tenantsAside = 100
	own := []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: 20, Per: time.Minute}}
	onBoth(t, Config{}, tenants(t, "p", nil, own), func(b *bench) {
		for i := range tenantsAside {
			scope := fmt.Sprint("p/t", i)
			b.heed(scope, owns(4, time.Minute))
			if d := b.decide(Request{Scope: scope, Ticket: fmt.Sprint(i), Cost: 10}); !d.Turn.Waits {
				b.t.Fatalf("%d was granted: %+v", i, d)
			}
		}
		look := func() Woken {
			b.t.Helper()
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 9})
			if err != nil || !woken.Waiting {
				b.t.Fatalf("%+v, %v", woken, err)
			}
			return woken
		}
		for range 4 { // each steps aside
			b.pass(10 * sec)
			look()
		}
		for _, i := range []int{tenantsAside - 1, 0, 64, tenantsAside / 2} {
			b.heed(fmt.Sprint("p/t", i), owns(20, time.Minute))
			var took time.Duration
			for {
				woken := look()
				if len(woken.Released) > 0 {
					if p := woken.Released[0]; p.Ticket != fmt.Sprint(i) {
						b.t.Fatalf("%v was released, not %d", p, i)
					}
					b.decide(Request{Scope: fmt.Sprint("p/t", i), Ticket: fmt.Sprint(i), Cost: 10})
					break
				}
				if woken.Next <= 0 || woken.Next > sec {
					b.t.Fatalf("after %v the next look is in %v", took, woken.Next)
				}
				if took += woken.Next; took > 3*sec {
					b.t.Fatalf("%d waits for %v, and its rule is free", i, took)
				}
				b.pass(woken.Next)
			}
		}
	})
}
