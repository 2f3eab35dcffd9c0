package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// "Start takes it without asking Redis, if it can be in time", "it is still in flight" until ReportClaimed says that it
// has come, and what is too late, costs something else, or was granted under other limits is decided as ever.
func TestStartTakesWhatWasGranted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(l *Limiter, req *Request)
		handed bool
	}{
		"as granted":      {func(*Limiter, *Request) {}, true},
		"too late":        {func(_ *Limiter, req *Request) { req.Turn.Granted.begins = time.Now().Add(-sec) }, false},
		"of another cost": {func(_ *Limiter, req *Request) { req.Cost = 2 }, false},
		"other limits":    {func(l *Limiter, _ *Request) { l.SetPolicy(policyOf(t, bigBucket[0])) }, false},
		"had its turn":    {func(_ *Limiter, req *Request) { req.standing = again }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			l, err := New(rdb, policyOf(t, bigBucket[0]), Config{Prefix: redistest.Prefix(t), StartTolerance: 500 * ms}) // it is not late on a busy machine
			noError(t, err)
			if d, err := l.Decide(ctx, Request{Scope: "p", Cost: 50}); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			req := Request{Scope: "p", MaxDelay: sec, Turn: Turn{WaiterID: "t", DispatchLead: sec}}
			if d, err := l.Waitlist().Queue(ctx, req); err != nil || !d.Position.Waits {
				t.Fatalf("%+v, %v", d, err)
			}
			got, err := l.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, Lead: sec})
			if err != nil || len(got.Granted) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			req.Turn.Granted = &got.Granted[0]
			c.change(l, &req)
			asked := counting(rdb, runsScript)
			d, err := l.Start(ctx, req)
			if err != nil || d.Handed != c.handed || c.handed && (!d.Allowed || asked.Load() > 0) || !c.handed && asked.Load() == 0 {
				t.Fatalf("%+v, %v, after %d scripts", d, err, asked.Load())
			}
			if !c.handed {
				return
			}
			ask := Waiter{Scope: "p", ID: "t"}
			if s, err := l.Waitlist().InspectWaiter(ctx, ask); err != nil || !s.Dispatched {
				t.Errorf("nobody has told that it has come: %+v, %v", s, err)
			}
			noError(t, l.Waitlist().ReportClaimed(ctx, "p", []WaiterRef{ask.Ref()}))
			if s, err := l.Waitlist().InspectWaiter(ctx, ask); err != nil || s.Dispatched || s.Waits {
				t.Errorf("it has come: %+v, %v", s, err)
			}
			if left := rdb.ZCard(ctx, overdueKey(keyspace(l.cfg.Prefix).provider("p"))).Val(); left != 0 {
				t.Errorf("%d may be named overdue", left)
			}
		})
	}
}

// What a killed process was granted is looked at after 3 s, also where nobody waits any more, or the others wait for long.
func TestInFlightIsLookedAt(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 1} {
		onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}), func(b *bench) {
			b.decide(Request{Scope: "p"})
			for i := range 1 + others {
				b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(i)}})
			}
			b.pass(time.Hour)
			d := b.dispatch(DispatchRequest{Max: 1})
			if len(d.Granted) != 1 || !d.Waiting || d.Next <= 2*sec || d.Next > 3*sec {
				b.t.Fatalf("%+v; what was granted is to be looked at in 3 s", d)
			}
			b.pass(d.Next)
			if d = b.dispatch(DispatchRequest{}); len(d.Overdue) != 1 {
				b.t.Errorf("%+v; one has not come", d)
			}
			b.dispatch(DispatchRequest{Claimed: d.Overdue})
			if d = b.dispatch(DispatchRequest{}); d.Waiting != (others > 0) || d.Waiting && d.Next < time.Minute {
				b.t.Errorf("%+v; nobody is in flight", d)
			}
		})
	}
}
