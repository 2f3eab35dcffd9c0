package throttle

import (
	"errors"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// A grant that is kept is found in another process, settled and given back there.
func TestKept(t *testing.T) {
	t.Parallel()
	pol := policyOf(t, twoUnits...)
	onBoth(t, Config{}, pol, func(b *bench) {
		other := b.beside(b.rdb, pol)
		d := b.decide(Request{Scope: "p/x", Costs: policy.Costs{"tokens": 600}})
		noError(b.t, b.SaveGrant(ctx, d.Grant, "task/1", time.Hour))
		if ttl := b.rdb.PTTL(ctx, keptKey(b.plan("p/x"), "task/1")).Val(); ttl <= 59*time.Minute || ttl > time.Hour {
			b.t.Errorf("it is kept for %s", ttl)
		}
		found := other.kept("task/1")
		other.settled(found, policy.Costs{"tokens": 100})
		if found.ID() != d.Grant.ID() || b.left() != "requests 2, tokens 900, daily 4900, parallel 1" {
			b.t.Errorf("%+v: %s", found, b.left())
		}
		if s, err := b.Settle(ctx, b.kept("task/1"), policy.Costs{"tokens": 300}); err != nil || s.Rules[0].Debt != 200 {
			b.t.Errorf("%v %v", s, err)
		}
		for range 2 {
			if other.giveBack(found); b.left() != "requests 3, tokens 999, daily 5000, parallel 1" {
				b.t.Error(b.left()) // the run still has its place
			}
		}
		if g, err := b.LoadGrant(ctx, "p/x", "task/1"); !errors.Is(err, ErrGrantNotFound) {
			b.t.Errorf("%+v %v", g, err)
		}
	})
}

// What was settled of a grant that is kept is remembered for as long, whichever came first, and whoever settles.
func TestKeptIsRemembered(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, twoUnits[:2]...), func(b *bench) {
		keep := func(g Grant) {
			noError(b.t, b.SaveGrant(ctx, g, "a", 50*time.Hour))
		}
		settle := func(g Grant) { b.settled(g, policy.Costs{"tokens": 700}) }
		for name, then := range map[string]func(g Grant){
			"settled, kept":         func(g Grant) { settle(g); keep(g) },
			"kept, settled":         func(g Grant) { keep(g); settle(g) },
			"kept, found":           func(g Grant) { keep(g); settle(b.kept("a")) },
			"kept, found, and here": func(g Grant) { keep(g); settle(b.kept("a")); settle(g) },
			"kept again, for less":  func(g Grant) { keep(g); settle(g); _ = b.SaveGrant(ctx, g, "b", time.Hour) },
		} {
			g := b.decide(Request{Scope: "p/x", Costs: policy.Costs{"tokens": 600}}).Grant
			then(g)
			ttl := b.rdb.PTTL(ctx, b.plan("p/x").Prefix+"s:"+g.id).Val()
			if least := b.rdb.PTTL(ctx, keptKey(b.plan("p/x"), "a")).Val(); ttl < least+time.Minute || least < 49*time.Hour {
				b.t.Errorf("%s: it is remembered for %s, and kept for %s", name, ttl, least)
			}
			b.pass(10 * sec)
		}
		g := b.decide(Request{Scope: "p/x", Costs: policy.Costs{"requests": 1}}).Grant // kept when its record has gone
		settle(g)
		b.pass(time.Hour)
		b.rdb.Del(ctx, b.plan("p/x").Prefix+"s:"+g.id)
		keep(g)
		if said := b.settled(b.kept("a"), policy.Costs{"tokens": 710, "requests": 1}); said != "requests 0 0 0, tokens 0 10 0" {
			b.t.Error(said)
		}
		if s, err := b.Settle(ctx, b.kept("a"), policy.Costs{"tokens": 9000}); err != nil || !s.Over() {
			b.t.Errorf("%+v, %v", s, err)
		}
	})
}

func (b *bench) kept(id string) Grant {
	b.t.Helper()
	g, err := b.LoadGrant(ctx, "p/x", id)
	noError(b.t, err)
	return g
}
