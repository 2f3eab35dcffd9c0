package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// An attempt id is one of its scope: asked for in two scopes of a provider it is charged in
// both, and each is known when it is sent again, whichever way it was asked for.
func TestSameIDInTwoScopes(t *testing.T) {
	t.Parallel()
	ways := map[string]func(b *bench, reqs ...Request) []Decision{
		"decide": each(func(b *bench, req Request) (Decision, error) { return b.Decide(ctx, req) }),
		"start":  each(func(b *bench, req Request) (Decision, error) { return b.Start(ctx, req) }),
		"wait":   each(func(b *bench, req Request) (Decision, error) { return b.Wait(ctx, req) }),
		"turn": each(func(b *bench, req Request) (Decision, error) {
			req.Turn.WaiterID = "t" + req.Scope
			return b.Decide(ctx, req)
		}),
		"together": func(b *bench, reqs ...Request) (all []Decision) {
			for _, one := range b.askTogether(reqs...) {
				all = append(all, one.Decision)
			}
			return all
		},
	}
	rules := map[string][]policy.Rule{
		"window":   {window10()},
		"bucket":   {{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 10}},
		"places":   {runs10()},
		"together": {window10(), {Name: "d", Algorithm: policy.FixedWindow, Limit: 10, Per: time.Hour}},
	}
	for way, ask := range ways {
		for kind, shared := range rules {
			t.Run(way+" "+kind, func(t *testing.T) {
				t.Parallel()
				onBoth(t, Config{}, policyOf(t, shared...), func(b *bench) {
					reqs := []Request{{Scope: "p/a", ID: "mine"}, {Scope: "p/b", ID: "mine"}}
					b.decide(Request{Scope: "p/c", ID: "warm"})
					for range 2 {
						grants := ask(b, reqs...)
						for i, d := range grants {
							if !d.Allowed || d.Grant.ID() != "mine" {
								b.t.Fatalf("%s: %+v under %q", reqs[i].Scope, d, d.Grant.ID())
							}
						}
						if left := b.peek().Rules[0].Remaining; left != 7 {
							b.t.Fatalf("%d are left of 10 to three attempts, want 7", left)
						}
					}
					b.giveBack(b.decide(reqs[0]).Grant)
					if left := b.peek().Rules[0].Remaining; left != 8 {
						b.t.Errorf("one was given back, and %d are left of 10, want 8", left)
					}
					b.giveBack(b.decide(reqs[1]).Grant)
					if left := b.peek().Rules[0].Remaining; left != 9 {
						b.t.Errorf("both were given back, and %d are left of 10, want 9", left)
					}
				})
			})
		}
	}
}

func each(ask func(*bench, Request) (Decision, error)) func(*bench, ...Request) []Decision {
	return func(b *bench, reqs ...Request) (all []Decision) {
		b.t.Helper()
		for _, req := range reqs {
			d, err := ask(b, req)
			if err != nil {
				b.t.Fatal(err)
			}
			all = append(all, d)
		}
		return all
	}
}

// What is settled of an attempt, or kept, is its scope's alone too, and so are its places.
func TestSameIDSettlesApart(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, window10(), runs10()), func(b *bench) {
		var grants []Grant
		for _, scope := range []string{"p/a", "p/b"} {
			d := b.decide(Request{Scope: scope, ID: "mine", Cost: 2})
			if err := b.SaveGrant(ctx, d.Grant, "kept", time.Hour); err != nil {
				b.t.Fatal(err)
			}
			kept, err := b.LoadGrant(ctx, scope, "kept")
			if err != nil || kept.ID() != "mine" {
				b.t.Fatalf("%q, %v", kept.ID(), err)
			}
			if s, err := b.Settle(ctx, kept, policy.Costs{policy.Requests: 1}); err != nil || len(s.Rules) != 1 || s.Rules[0].Back != 1 {
				b.t.Errorf("%s: %+v, %v: a unit should come back", scope, s, err)
			}
			grants = append(grants, d.Grant)
		}
		for _, g := range grants { // a lease of each
			_, lease := b.Lease(ctx, g)
			if err := lease.Release(ctx); err != nil {
				b.t.Fatal(err)
			}
		}
		if got := b.peek(); got.Rules[0].Remaining != 8 || got.Rules[1].Remaining != 10 {
			b.t.Errorf("%+v: two units are spent", got.Rules)
		}
	})
}

// "Attempt ids are kept apart from the limiter's state, ≤ 150 B each": however long the scope.
func TestRecordOfAScopeIsShort(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	l, err := New(rdb, policyOf(t, window10()), Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Decide(ctx, Request{Scope: "p/a-tenant-of-a-long-name/an-endpoint-of-a-long-name", ID: NewID()})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	keys := records(t, rdb, prefix)
	if len(keys) != 1 {
		t.Fatalf("%q", keys)
	}
	if n := rdb.MemoryUsage(ctx, keys[0]).Val() - int64(len(prefix)-len("hw")); n > 150 {
		t.Errorf("%s takes %d bytes", keys[0], n)
	}
}
