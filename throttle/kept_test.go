package throttle

import (
	"errors"
	"testing"
	"time"
)

// A grant that is kept is found in another process, settled and given back there.
func TestKept(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, twoUnits...)
	onBoth(t, Config{}, policy, func(b *bench) {
		other, err := New(b.rdb, policy, b.cfg)
		if err != nil {
			b.t.Fatal(err)
		}
		other.clock = b.clock
		d := b.decide(Request{Scope: "p/x", Costs: Costs{"tokens": 600}})
		if err := b.Keep(ctx, d.Grant, "task/1", time.Hour); err != nil {
			b.t.Fatal(err)
		}
		if ttl := b.rdb.PTTL(ctx, b.keptKey(mustScope(b.t, "p/x"), "task/1")).Val(); ttl <= 59*time.Minute || ttl > time.Hour {
			b.t.Errorf("it is kept for %s", ttl)
		}
		found, err := other.Kept(ctx, "p/x", "task/1")
		if err != nil || found.ID() != d.Grant.ID() {
			b.t.Fatalf("%+v %v", found, err)
		}
		s, err := other.Settle(ctx, found, Costs{"tokens": 100})
		if err != nil || b.left() != "requests 2, tokens 900, daily 4900, parallel 1" {
			b.t.Errorf("%v %v, %s", s, err, b.left())
		}
		again, err := b.Kept(ctx, "p/x", "task/1")
		if err != nil {
			b.t.Fatal(err)
		}
		if s, err := b.Settle(ctx, again, Costs{"tokens": 300}); err != nil || s.Rules[0].Debt != 200 {
			b.t.Errorf("%v %v", s, err)
		}
		for range 2 {
			if err := other.GiveBack(ctx, found); err != nil || b.left() != "requests 3, tokens 999, daily 5000, parallel 1" {
				b.t.Errorf("%v, %s", err, b.left()) // the run still has its place
			}
		}
		if g, err := b.Kept(ctx, "p/x", "task/1"); !errors.Is(err, ErrNotKept) {
			b.t.Errorf("%+v %v", g, err)
		}
	})
}

// "Rules that are gone, or count otherwise by now, have no part in it."
func TestKeptUnderOtherRules(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, twoUnits...), func(b *bench) {
		d := b.decide(Request{Scope: "p/x", Costs: Costs{"tokens": 600}})
		if err := b.Keep(ctx, d.Grant, "a", time.Hour); err != nil {
			b.t.Fatal(err)
		}
		b.SetPolicy(policyOf(b.t,
			Rule{Name: "requests", Algorithm: FixedWindow, Limit: 3, Per: sec},
			Rule{Name: "tokens", Algorithm: TokenBucket, Limit: 1000, Per: sec, Burst: 1000, Unit: "words"},
			Rule{Name: "daily", Algorithm: Calendar, Limit: 5000, Resets: "@daily", Unit: "tokens"}))
		g, err := b.Kept(ctx, "p/x", "a")
		if err != nil || len(g.places) != 1 {
			b.t.Fatalf("%+v %v", g, err)
		}
		if said := b.settled(g, Costs{"tokens": 100}); said != "daily 500 0 0" {
			b.t.Error(said)
		}
	})
}

func TestKeepRefuses(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, twoUnits...), func(b *bench) {
		g := b.decide(Request{Scope: "p/x"}).Grant
		for id, stay := range map[string]time.Duration{"": time.Hour, "a": 0, "b": 367 * day} {
			if err := b.Keep(ctx, g, id, stay); err == nil {
				b.t.Errorf("%q for %s", id, stay)
			}
		}
		if err := b.Keep(ctx, Grant{}, "zero", time.Hour); err != nil {
			b.t.Error(err)
		}
		if g, err := b.Kept(ctx, "p/x", "zero"); !errors.Is(err, ErrNotKept) {
			b.t.Errorf("%+v %v", g, err)
		}
	})
}
