package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// "Start uses it without asking Redis if the run can begin in time": what is too late or was granted under other limits is decided
// as ever.
func TestStartTakesWhatWasGranted(t *testing.T) {
	t.Parallel()
	full := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 200 * ms}
	for name, c := range map[string]struct {
		change func(l *Limiter, req *Request)
		handed bool
	}{
		"as granted":   {func(*Limiter, *Request) {}, true},
		"too late":     {func(_ *Limiter, req *Request) { req.Waiter.Granted.Starts = time.Now().Add(-sec) }, false},
		"other limits": {func(l *Limiter, _ *Request) { l.SetPolicy(policyOf(t, full)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Client(t), Config{StartTolerance: 500 * ms}, policyOf(t, full)) // it is not late on a busy machine
			b.queued("p", "t")
			req := Request{Scope: "p", MaxDelay: sec, Waiter: waiter("t")}
			req.Waiter.Granted = &b.dispatched(sec)[0]
			c.change(b.Limiter, &req)
			asked := counting(b.rdb, runsScript)
			d, err := b.Start(ctx, req)
			if err != nil || !d.Allowed || d.Handed != c.handed || c.handed != (asked.Load() == 0) {
				t.Fatalf("%+v, %v, after %d scripts", d, err, asked.Load())
			}
		})
	}
}
