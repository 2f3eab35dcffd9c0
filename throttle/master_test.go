package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// What decides who goes next is read from the master, whatever the client does with other reads.
func TestReadsComeFromTheMaster(t *testing.T) {
	t.Parallel()
	reads, master, replica := redistest.LaggingReplica(t)
	b := newBench(t, reads, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}))
	d := b.decide(Request{Scope: "p"})
	waits := Waiter{Scope: "p", ID: "t"}
	if d := b.decide(Request{Scope: waits.Scope, Turn: Turn{WaiterID: waits.ID}}); !d.Position.Waits {
		t.Fatalf("%+v", d)
	}
	key := scheduleKey(b.provider("p"))
	if master.Exists(ctx, key).Val() != 1 || reads.Exists(ctx, key).Val() != 0 {
		t.Fatal("the client does not read from the replica, or that is not behind")
	}

	if stands, err := b.Waitlist().IsQueued(ctx, waits); err != nil || !stands {
		t.Errorf("it stands in line: %v, %v", stands, err)
	}
	if places, err := b.Waitlist().Waiting("p").Next(ctx, 1); err != nil || len(places) != 1 {
		t.Errorf("one stands in line: %v, %v", places, err)
	}
	noError(t, b.Waitlist().PublishActive(ctx, "p"))
	if turns, err := b.Waitlist().ActiveProviders(ctx, time.Time{}); err != nil || len(turns) != 1 {
		t.Errorf("p was announced: %v, %v", turns, err)
	}
	if out, err := b.Forecast(ctx, "p"); err != nil || out.Waiting != 1 {
		t.Errorf("one waits: %+v, %v", out, err)
	}
	noError(t, b.SaveGrant(ctx, d.Grant, "kept", time.Hour))
	if _, err := b.LoadGrant(ctx, "p", "kept"); err != nil {
		t.Errorf("it is kept: %v", err)
	}

	wake := func(glance bool) Dispatched {
		woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, OnlyIfDue: glance})
		noError(t, err)
		return woken
	}
	wake(false)
	due, err := master.Dump(ctx, key).Result()
	noError(t, err)
	if err := replica.Restore(ctx, key, time.Hour, due).Err(); err != nil { // it was as far once
		t.Fatal(err)
	}
	looked := func() string { return master.HGet(ctx, metaKey(b.provider("p")), "@").Val() }
	before := looked()
	b.pass(sec)
	if wake(true); looked() != before {
		t.Error("nothing has changed since the last look, and a glance did not do")
	}
	b.giveBack(d.Grant)
	if woken := wake(true); len(woken.Granted) != 1 {
		t.Errorf("%+v: a glance should have seen that the unit came back", woken)
	}
}
