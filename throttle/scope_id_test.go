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
				left := func(what string, want int64) {
					b.t.Helper()
					if left := b.peek().Rules[0].Remaining; left != want {
						b.t.Fatalf("%s: %d are left of 10, want %d", what, left, want)
					}
				}
				reqs := []Request{{Scope: "p/a", ID: "mine"}, {Scope: "p/b", ID: "mine"}}
				b.decide(Request{Scope: "p/c", ID: "warm"})
				for range 2 {
					for i, d := range ask(b, reqs...) {
						if !d.Allowed || d.Grant.ID() != "mine" {
							b.t.Fatalf("%s: %+v under %q", reqs[i].Scope, d, d.Grant.ID())
						}
					}
					left("three attempts", 7)
				}
				b.giveBack(b.decide(reqs[0]).Grant)
				left("one was given back", 8)
				b.giveBack(b.decide(reqs[1]).Grant)
				left("both were given back", 9)
			})
		}
	}
}
