package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// An attempt id is one of its scope: asked for in two scopes of a provider it is charged in
// both, and each is known when it is sent again, whichever way it was asked for.
func TestSameIDInTwoScopes(t *testing.T) {
	t.Parallel()
	ways := map[string]func(b *bench, reqs ...Request) []Decision{
		"alone": func(b *bench, reqs ...Request) (all []Decision) {
			for _, req := range reqs {
				all = append(all, b.decide(req))
			}
			return all
		},
		"together": (*bench).askTogether,
	}
	rules := map[string][]policy.Rule{
		"window":   {window10()},
		"bucket":   {{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 10}},
		"places":   {runs10()},
		"together": {window10(), {Name: "d", Algorithm: policy.FixedWindow, Limit: 10, Per: time.Hour}},
	}
	for way, ask := range ways {
		for kind, shared := range rules {
			onBothIn(t, way+" "+kind, Config{}, policyOf(t, shared...), func(b *bench) {
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
		}
	}
}
