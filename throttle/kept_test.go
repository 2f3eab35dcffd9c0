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

// "SaveLease is SaveGrant with the grant's places": any process renews, releases and gives back what another one holds, and what
// nobody renews comes free by the clock.
func TestKeptLease(t *testing.T) {
	t.Parallel()
	pol := policyOf(t, twoUnits...)
	onBoth(t, Config{}, pol, func(b *bench) {
		other := b.beside(b.rdb, pol)
		take := func(id string) (time.Duration, Grant) {
			g := b.decide(Request{Scope: "p/x", ID: id, Costs: policy.Costs{"tokens": 100}}).Grant
			noError(b.t, b.SaveLease(ctx, g, id, time.Hour))
			return g.LeaseTime(), g
		}
		lease, _ := take("a")
		for range 3 { // longer than its lease
			b.pass(lease - sec)
			noError(b.t, other.Renew(ctx, other.kept("a")))
		}
		if left := b.left(); left != "requests 3, tokens 1000, daily 4900, parallel 1" {
			b.t.Error(left)
		}
		noError(b.t, other.Release(ctx, other.kept("a")))
		if left := b.left(); left != "requests 3, tokens 1000, daily 4900, parallel 2" {
			b.t.Error(left)
		}
		if err := b.Renew(ctx, b.kept("a")); !errors.Is(err, ErrLeaseLost) {
			b.t.Errorf("a lease that was released: %v", err)
		}
		if s, err := other.Settle(ctx, other.kept("a"), policy.Costs{"tokens": 40}); err != nil || len(s.Rules) == 0 {
			b.t.Errorf("after its release: %v %v", s, err)
		}

		_, _ = take("b")
		b.pass(lease)
		if err := other.Renew(ctx, other.kept("b")); !errors.Is(err, ErrLeaseLost) {
			b.t.Errorf("a lease that has expired: %v", err)
		}

		_, _ = take("c")
		other.giveBack(other.kept("c"))
		if left := b.left(); left != "requests 3, tokens 1000, daily 4860, parallel 2" {
			b.t.Error(left)
		}
		if d := b.decide(Request{Scope: "p/x", ID: "d"}); d.Grant.LeaseTime() != lease {
			b.t.Errorf("its lease is %s", d.Grant.LeaseTime())
		}
	})
}

// A lease lasts for as long as it is renewed, whatever its grant was to be stored for.
func TestKeptLeaseStays(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, oneRun()), func(b *bench) {
		g := b.decide(Request{Scope: "p/x"}).Grant
		noError(b.t, b.SaveLease(ctx, g, "a", sec))
		noError(b.t, b.Renew(ctx, b.kept("a")))
		if ttl := b.rdb.PTTL(ctx, keptKey(b.plan("p/x"), "a")).Val(); ttl <= g.LeaseTime() {
			b.t.Errorf("it is stored for %s", ttl)
		}
	})
}
