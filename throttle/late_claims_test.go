package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "A task that is decided anew keeps its charge": what an idle limit has units for starts, however late each task comes for
// its grant, whether they were planned in one call or one by one. Nothing else does. A bucket that lost units would take
// minutes for a slow one, and 14 s for 40 of two a second.
func TestLateGrantsKeepTheirCharge(t *testing.T) {
	t.Parallel()
	tokens := func(limit int64, per time.Duration, burst int64) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: per, Burst: burst}
	}
	for name, tt := range map[string]struct {
		rule  policy.Rule
		tasks int
		late  time.Duration
	}{
		"a slow bucket":        {tokens(1, time.Minute, 20), 20, 100 * ms},
		"a bucket, by seconds": {tokens(2, sec, 40), 40, 20 * ms},
		"a sliding window":     {policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 20, Per: time.Minute}, 20, 100 * ms},
	} {
		for way, apart := range map[string]time.Duration{"in one call": 0, "one by one": 5 * ms} {
			onBothIn(t, name+" "+way, Config{StartTolerance: 5 * ms}, policyOf(t, tt.rule), func(b *bench) {
				planned, took := b.joinMany(tt.tasks+1, apart), 0
				come := func(g WaiterRef) {
					b.pass(ms)
					d := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: g.ID, DispatchLead: 20 * ms}})
					if d.Allowed && d.Wait == 0 {
						took++
					}
					if d.Allowed && took%2 == 0 { // and once more, since its run is late too
						b.pass(10 * ms)
						noError(b.t, b.Limiter.giveBack(ctx, d.Grant, false))
						if d = b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: g.ID, DispatchLead: 20 * ms}, standing: again}); !d.Allowed || d.Wait > 0 {
							b.t.Errorf("%s is not allowed again: %+v", g.ID, d)
						}
					}
				}
				b.pass(tt.late)
				for _, p := range planned {
					come(p)
				}
				for range 100 {
					b.pass(50 * ms)
					for _, g := range b.dispatch(DispatchRequest{Max: 8, Lead: 20 * ms}).Granted {
						b.pass(30 * ms)
						come(g.WaiterRef)
					}
				}
				if elapsed := us(b.now.Load() - epoch); took < tt.tasks || took > tt.tasks+int(elapsed*time.Duration(tt.rule.Limit)/tt.rule.Per) {
					b.t.Errorf("%d of %d start in %s", took, tt.tasks, elapsed)
				}
			})
		}
	}
}

// joinMany has tasks join at p/x, and returns those that go straight to asynq.
func (b *bench) joinMany(tasks int, apart time.Duration) (direct []WaiterRef) {
	b.t.Helper()
	var asks []Waiter
	for i := range tasks {
		asks = append(asks, Waiter{Scope: "p/x", ID: fmt.Sprint(i)})
	}
	for len(asks) > 0 {
		n := len(asks)
		if apart > 0 {
			n = 1
			b.pass(apart)
		}
		placed, err := b.Waitlist().Join(ctx, asks[:n], 20*ms, 150*ms)
		noError(b.t, err)
		for i, p := range placed {
			if !p.Waits {
				direct = append(direct, asks[i].Ref())
			}
		}
		asks = asks[n:]
	}
	return direct
}
