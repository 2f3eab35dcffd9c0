package throttle

import (
	"fmt"
	"testing"
	"time"
)

// A tenant whose own rule binds it for long stands in nobody's way, planned or not.
func TestPlannedTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {
		Rules:  []Rule{{Name: "all", Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 10}},
		Scopes: map[string]Node{"*": {Rules: []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: 1, Per: time.Hour}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, policy, func(b *bench) {
		b.decide(Request{Scope: "p/a"})
		placed, err := b.LineUp(ctx, []Ask{{Scope: "p/a", Ticket: "t"}}, 0, 0)
		if err != nil || !placed[0].Waits {
			b.t.Fatalf("%+v, %v; its rule is spent", placed, err)
		}
		if d := b.decide(Request{Scope: "p/b", Ticket: "u"}); !d.Allowed {
			b.t.Errorf("denied, behind one that waits for a rule of its own: %+v", d.Turn)
		}
	})
}

// A limit that was raised wakes those who wait, for however many rules.
func TestRaisedLimitWakesAll(t *testing.T) {
	t.Parallel()
	limits := func(limit int64) *Policy {
		p, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {Scopes: map[string]Node{
			"*": {Rules: []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: limit, Per: sec}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	onBoth(t, Config{}, limits(0), func(b *bench) {
		const scopes = 100
		for i := range scopes {
			b.decide(Request{Scope: fmt.Sprintf("p/%d", i), Ticket: fmt.Sprint(i)})
		}
		for range 10 { // until each is in the round of its own rule, for an hour
			if _, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: scopes}); err != nil {
				b.t.Fatal(err)
			}
		}
		raised, err := New(b.rdb, limits(1), b.cfg)
		if err != nil {
			b.t.Fatal(err)
		}
		raised.clock = b.clock
		released := 0
		for calls := range 40 {
			woken, err := raised.Wake(ctx, WakeRequest{Provider: "p", Most: scopes, All: calls == 0})
			if err != nil {
				b.t.Fatal(err)
			}
			released += len(woken.Released)
		}
		if released != scopes {
			b.t.Errorf("%d of %d were released", released, scopes)
		}
	})
}

// Who went straight to its queue keeps its turn until somebody is there to take it,
// however long that takes, and for three seconds more.
func TestStraightBeforeAnybodyLooks(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, Rule{Name: "r", Algorithm: SlidingWindow, Limit: 2, Per: sec}), func(b *bench) {
		placed, err := b.LineUp(ctx, []Ask{{Scope: "p", Ticket: "a"}, {Scope: "p", Ticket: "b"}, {Scope: "p", Ticket: "c"}}, 0, 0)
		if err != nil || placed[0].Waits || placed[1].Waits || !placed[2].Waits {
			b.t.Fatalf("%+v, %v; the rule has two units", placed, err)
		}
		b.now.Add(time.Hour.Microseconds())
		wake := func() []Place {
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 8})
			if err != nil {
				b.t.Fatal(err)
			}
			return woken.Released
		}
		if released := wake(); len(released) > 0 {
			b.t.Errorf("%v was released before those who went straight to their queues", released)
		}
		if d := b.decide(Request{Scope: "p", Ticket: "a"}); !d.Allowed {
			b.t.Errorf("denied, though it went straight to its queue: %+v", d.Turn)
		}
		b.now.Add(3_000_000)
		if released := wake(); len(released) != 1 || released[0].Ticket != "c" {
			b.t.Errorf("released: %v; b has not come in three seconds, and c waits", released)
		}
	})
}

// A round whose time to look was lost, as a key is that somebody deletes, is looked at
// again when the first of those who wait for it comes back by itself.
func TestLostTimesToLookHeal(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, Rule{Name: "r", Algorithm: SlidingWindow, Limit: 1, Per: time.Hour}), func(b *bench) {
		d := b.decide(Request{Scope: "p"})
		for _, ticket := range []string{"a", "b"} {
			b.decide(Request{Scope: "p", Ticket: ticket})
		}
		b.rdb.Del(ctx, dueKey(keyspace(b.cfg.Prefix).provider("p")))
		wake := func() Woken {
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 8})
			if err != nil {
				b.t.Fatal(err)
			}
			return woken
		}
		if woken := wake(); woken.Waiting {
			b.t.Fatalf("the times to look are gone, and %+v", woken)
		}
		if d := b.decide(Request{Scope: "p", Ticket: "b"}); d.Allowed || !d.Turn.Waits || d.Turn.Look != 0 {
			b.t.Errorf("%+v of one that came back", d.Turn)
		}
		if woken := wake(); !woken.Waiting {
			b.t.Error("nobody is woken again")
		}
		b.giveBack(d.Grant)
		if woken := wake(); len(woken.Released) != 1 || woken.Released[0].Ticket != "a" {
			b.t.Errorf("%+v, and a is first", woken)
		}
	})
}
