package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
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
			rdb := redistest.Client(t)
			l := newLimiter(t, rdb, policyOf(t, full), Config{Prefix: redistest.Prefix(t), StartTolerance: 500 * ms}) // it is not late on a busy machine
			joined, err := l.Waitlist().Join(ctx, []waitlist.Waiter{{Scope: "p", Queue: "default", ID: "t"}})
			if err != nil || joined[0].Err != nil {
				t.Fatalf("%+v, %v", joined, err)
			}
			got, err := l.Waitlist().Dispatch(ctx, waitlist.Request{Provider: "p", Max: 1, Lead: sec, Serves: []wire.Weighted{{Queue: "default", Weight: 1}}})
			if err != nil || len(got.Granted) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			req := Request{Scope: "p", MaxDelay: sec, Waiter: waiter("t")}
			req.Waiter.Granted = &got.Granted[0]
			c.change(l, &req)
			asked := counting(rdb, runsScript)
			d, err := l.Start(ctx, req)
			if err != nil || !d.Allowed || d.Handed != c.handed || c.handed != (asked.Load() == 0) {
				t.Fatalf("%+v, %v, after %d scripts", d, err, asked.Load())
			}
		})
	}
}
