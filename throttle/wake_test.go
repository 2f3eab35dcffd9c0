package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// A glance is a look of two commands while nothing has come before what the last look
// told to be next, and sees whatever does.
func TestGlance(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}), func(b *bench) {
		at := keyspace(b.cfg.Prefix).provider("p") + "!meta"
		looked := func() bool { // the call noted the time of a look
			b.t.Helper()
			return b.rdb.HGet(ctx, at, "@").Val() == b.clock()
		}
		wake := func(glance bool) Dispatched {
			b.t.Helper()
			b.now.Add(sec.Microseconds())
			return b.dispatch(DispatchRequest{Max: 8, OnlyIfDue: glance})
		}
		d := b.decide(Request{Scope: "p"})
		if woken := wake(true); woken.Waiting {
			b.t.Errorf("nobody waits, and a glance says %+v", woken)
		}
		b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "a"}})
		if woken := wake(true); !woken.Waiting || !looked() {
			b.t.Errorf("nothing is known yet, and a glance says %+v, without a look", woken)
		}
		if woken := wake(true); !woken.Waiting || woken.Next <= 0 || woken.Next > time.Hour || len(woken.Granted) > 0 || looked() {
			b.t.Errorf("nothing has changed, and a glance says %+v", woken)
		}
		if woken := wake(false); !woken.Waiting || !looked() {
			b.t.Errorf("%+v, and no look was made", woken)
		}
		b.giveBack(d.Grant)
		if woken := wake(true); len(woken.Granted) != 1 {
			b.t.Errorf("a round was made due, and a glance says %+v", woken)
		}
		b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "b"}})
		wake(true)
		for overdue := range 2 {
			b.nexts.of("p").at = time.Now().Add(-time.Duration(overdue) * 4 * sec)
			if wake(true); looked() != (overdue == 1) {
				b.t.Errorf("one is in flight, overdue: %d, and it was looked: %t", overdue, looked())
			}
		}
		b.nexts.of("p").until = time.Now()
		if wake(true); !looked() {
			b.t.Error("a look is overdue, and a glance was enough")
		}
	})
}
