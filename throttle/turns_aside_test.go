package throttle

import (
	"fmt"
	"testing"
	"time"
)

// "Of more than a look brings along, the next 32 four times a second": so all are looked at, and
// no look follows another without a pause.
func TestManyTooDear(t *testing.T) {
	t.Parallel()
	own := []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: 20, Per: time.Minute}}
	account := []Rule{{Name: "account", Algorithm: TokenBucket, Limit: 1000, Per: sec, Burst: 1000}}
	t.Run("alone", func(t *testing.T) { manyTooDear(t, tenants(t, "p", nil, own)) })
	t.Run("below an account", func(t *testing.T) { manyTooDear(t, tenants(t, "p", account, own)) })
}

func manyTooDear(t *testing.T, policy *Policy) {
	t.Helper()
	const tenantsAside = 100
	onBoth(t, Config{}, policy, func(b *bench) {
		for i := range tenantsAside {
			scope := fmt.Sprint("p/t", i)
			b.heed(scope, owns(4, time.Minute))
			if d := b.decide(Request{Scope: scope, Ticket: fmt.Sprint(i), Cost: 10}); !d.Turn.Waits {
				b.t.Fatalf("%d was granted: %+v", i, d)
			}
		}
		look := func() Woken {
			b.t.Helper()
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 9})
			if err != nil || !woken.Waiting {
				b.t.Fatalf("%+v, %v", woken, err)
			}
			return woken
		}
		for range 4 { // each steps aside
			b.pass(10 * sec)
			look()
		}
		for _, i := range []int{tenantsAside - 1, 0, 64, tenantsAside / 2} {
			b.heed(fmt.Sprint("p/t", i), owns(20, time.Minute))
			var took time.Duration
			for {
				woken := look()
				if len(woken.Released) > 0 {
					if p := woken.Released[0]; p.Ticket != fmt.Sprint(i) {
						b.t.Fatalf("%v was released, not %d", p, i)
					}
					b.decide(Request{Scope: fmt.Sprint("p/t", i), Ticket: fmt.Sprint(i), Cost: 10})
					break
				}
				if woken.Next <= 0 || woken.Next > sec {
					b.t.Fatalf("after %v the next look is in %v", took, woken.Next)
				}
				if took += woken.Next; took > 3*sec {
					b.t.Fatalf("%d waits for %v, and its rule is free", i, took)
				}
				b.pass(woken.Next)
			}
		}
	})
}

// A task that no rule is to admit once it has grown keeps nobody waiting: it costs too much for
// one rule for a while, and for another for good.
func TestTooDearForGood(t *testing.T) {
	t.Parallel()
	limits := func(low int64) *Policy {
		return policyOf(t, Rule{Name: "own", Algorithm: SlidingWindow, Limit: 20, Per: time.Minute},
			Rule{Name: "low", Algorithm: FixedWindow, Limit: low, Per: time.Hour})
	}
	onBoth(t, Config{}, limits(20), func(b *bench) {
		b.heed("p", owns(4, time.Minute))
		for ticket, cost := range []int64{10, 1} {
			if d := b.decide(Request{Scope: "p", Ticket: fmt.Sprint(ticket), Cost: cost}); !d.Turn.Waits {
				b.t.Fatalf("%+v", d)
			}
		}
		b.SetPolicy(limits(5))
		b.pass(sec)
		woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 9, All: true})
		if err != nil || len(woken.Released) != 1 || woken.Released[0].Ticket != "1" {
			b.t.Errorf("%+v, %v: the second should be released", woken, err)
		}
	})
}

// A level's time stays while somebody waits below it for any of its rules, though nobody does for
// the last one, and so does the slot of a line that was emptied.
func TestTimeStaysWhileAnyWait(t *testing.T) {
	t.Parallel()
	more := Rule{Name: "more", Algorithm: TokenBucket, Limit: 1000, Per: sec, Burst: 1000}
	onBoth(t, Config{}, policyOf(t, bigBucket[0]), func(b *bench) {
		b.decide(Request{Scope: "p/b", Cost: 50})
		for ticket := range 9 {
			b.decide(Request{Scope: "p/b", Ticket: fmt.Sprint(ticket)})
		}
		b.SetPolicy(policyOf(b.t, bigBucket[0], more))
		b.decide(Request{Scope: "p/a", Ticket: "a", Cost: 10})
		b.pass(sec / 5)
		woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 1})
		if err != nil || len(woken.Released) != 1 || woken.Released[0].Scope != "p/a" {
			b.t.Fatalf("%+v, %v", woken, err)
		}
		at := b.rdb.HGetAll(ctx, b.provider("p")+"!at").Val()
		if at["V"] == "" || at["F/a"] == "" {
			b.t.Errorf("others wait, and the time is %q, the slot %q", at["V"], at["F/a"])
		}
	})
}

// "A task that a lowered limit can never admit waits beside its line": priority 5 is before
// priority 0 again when the limit is what it was, and nobody waits for it meanwhile.
func TestTooDearForTheRuleKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limit := func(limit int64) *Policy {
		return policyOf(t, Rule{Name: "r", Algorithm: TokenBucket, Limit: limit, Per: sec, Burst: limit})
	}
	onBoth(t, Config{}, limit(10), func(b *bench) {
		b.decide(Request{Scope: "p/a", ID: NewID(), Cost: 10})
		lineUpAll(b, []Ask{
			{Scope: "p/a", Ticket: "cheap"}, {Scope: "p/a", Ticket: "dear first", Cost: 10, Priority: 5},
			{Scope: "p/a", Ticket: "dear second", Cost: 9, Priority: 5}, {Scope: "p/a", Ticket: "dear last", Cost: 8},
			{Scope: "p/b", Ticket: "other"},
		})
		var order []string
		look := func(back []Place) {
			b.t.Helper()
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 1, All: true, Back: back})
			if err != nil {
				b.t.Fatal(err)
			}
			for _, p := range woken.Released {
				b.decide(Request{Scope: p.Scope, Ticket: p.Ticket, Cost: map[string]int64{"dear first": 10, "dear second": 9, "dear last": 8}[p.Ticket], ID: NewID()})
				order = append(order, p.Ticket)
			}
		}
		b.SetPolicy(limit(5))
		for range 3 {
			b.pass(sec)
			look(nil)
		}
		if got := fmt.Sprint(order); got != "[cheap other]" && got != "[other cheap]" {
			b.t.Fatalf("%s were released while the others are too dear", got)
		}
		lineUpAll(b, []Ask{{Scope: "p/a", Ticket: "later"}})
		order = nil
		b.SetPolicy(limit(10))
		places, err := b.Parked(ctx, "p", 0, 100)
		if err != nil {
			b.t.Fatal(err)
		}
		look(places)
		for range 4 {
			b.pass(sec)
			look(nil)
		}
		if got := fmt.Sprint(order); got != "[dear first dear second dear last later]" {
			b.t.Errorf("%s is the order when the limit is what it was", got)
		}
	})
}
