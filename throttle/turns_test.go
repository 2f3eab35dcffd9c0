package throttle

import (
	"fmt"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// However many wait, a call that looks at all of them, since limits have changed, looks at some; the next go on.
func TestChangedLimitsAreLookedAtInParts(t *testing.T) {
	t.Parallel()
	limits := func(limit int64) *policy.Policy {
		p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
			"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: limit, Per: sec}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	b := newBench(t, redistest.Client(t), Config{}, limits(0))
	const scopes = 4000
	asks := make([]Waiter, scopes)
	for i := range asks {
		asks[i] = Waiter{Scope: fmt.Sprint("p/", i), ID: "t"}
	}
	lineUpAll(b, asks)
	for range scopes / 60 {
		b.dispatch(DispatchRequest{}) // each waits for its own rule
	}
	raised, err := New(b.rdb, limits(1), b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	raised.clock = b.clock
	due := func() int64 { return b.rdb.ZCount(ctx, scheduleKey(b.provider("p")), "-inf", b.clock()).Val() }
	if n := due(); n > 1 {
		t.Fatalf("%d are due, and all of them wait for an hour", n)
	}
	for calls := range 2 * scopes {
		before := due()
		d, err := raised.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", CheckAll: calls == 0})
		if err != nil {
			t.Fatal(err)
		}
		if n := due() - before; n > scopes/2 {
			t.Fatalf("one call has had %d looked at", n)
		}
		if !b.rdb.HExists(ctx, b.provider("p")+"!meta", "*").Val() {
			break
		}
		if d.Next != 0 {
			t.Fatalf("not all were looked at, and the next call is in %s", d.Next)
		}
	}
	if n := b.rdb.ZCount(ctx, scheduleKey(b.provider("p")), "("+b.clock(), "+inf").Val(); n > 1 {
		t.Errorf("%d still wait for an hour", n)
	}
}
