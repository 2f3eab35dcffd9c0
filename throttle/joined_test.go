package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

const joinedRules = `
limits:
  p:
    rules:
    - {name: account, algorithm: token-bucket, limit: 1, per: 1s, burst: 10}
    - {name: tokens, algorithm: token-bucket, limit: 100, per: 1s, burst: 200, unit: tokens}
    scopes:
      "*":
        rules:
        - {name: tenant, algorithm: sliding-window, limit: 2, per: 1h}
        - {name: uploads, algorithm: fixed-window, limit: 100, per: 1m, unit: tokens}
      paused:
        paused: true
  runs:
    rules:
    - {name: places, algorithm: concurrency, limit: 1, lease: 1m}
`

// Join says of each waiter how many are before it, and which rule it waits for, as InspectWaiter does.
func TestJoinSaysWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	const atOnce = "-1"
	tokens := func(n int64) policy.Costs { return policy.Costs{"requests": 0, "tokens": n} }
	for name, tt := range map[string]struct {
		take []Request // before it
		of   Waiter    // three of which join
		want []string  // of each: how many are before it, and the rule
	}{
		"of several rules, the tenant's": {nil, Waiter{Scope: "p/a"}, []string{atOnce, atOnce, "0 p/a p/*:tenant"}},
		"the account's": {
			[]Request{{Scope: "p/b", Cost: 2}, {Scope: "p/c", Cost: 2}, {Scope: "p/d", Cost: 2}, {Scope: "p/e", Cost: 2}, {Scope: "p/f", Cost: 2}},
			Waiter{Scope: "p/a"},
			[]string{"0 p p:account", "1 p p:account", "2 p/a p/*:tenant"},
		},
		// Of the rules on the path these tasks meet the second and the fourth.
		"by unit, the outer one": {
			[]Request{{Scope: "p/b", Costs: tokens(100)}, {Scope: "p/c", Costs: tokens(100)}},
			Waiter{Scope: "p/a", Costs: tokens(40)},
			[]string{"0 p p:tokens", "1 p p:tokens", "2 p p:tokens"},
		},
		"by unit, the inner one": {
			[]Request{{Scope: "p/a", Costs: tokens(60)}},
			Waiter{Scope: "p/a", Costs: tokens(40)},
			[]string{atOnce, "0 p/a p/*:uploads", "1 p/a p/*:uploads"},
		},
		"places": {
			[]Request{{Scope: "runs", ID: "run"}},
			Waiter{Scope: "runs"},
			[]string{"0 runs runs:places", "1 runs runs:places", "2 runs runs:places"},
		},
		"a pause": {nil, Waiter{Scope: "p/paused"}, []string{"0 p/paused p/paused:/paused", "1 p/paused p/paused:/paused", "2 p/paused p/paused:/paused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, parsedPolicy(t, joinedRules), func(b *bench) {
				for _, req := range tt.take {
					if d := b.decide(req); !d.Allowed {
						b.t.Fatalf("%+v", d)
					}
				}
				var asks []Waiter
				for i := range tt.want {
					ask := tt.of
					ask.ID = fmt.Sprint(i)
					asks = append(asks, ask)
				}
				for again := range 2 {
					placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
					if err != nil {
						b.t.Fatal(err)
					}
					for i, one := range placed {
						if got := waitedFor(one); got != tt.want[i] || one.Again != (again == 1 && got != atOnce) {
							b.t.Errorf("%d: %q, want %q: %+v", i, got, tt.want[i], one)
						}
					}
				}
			})
		})
	}
}

func waitedFor(one Joined) string {
	if one.Binding == nil {
		return fmt.Sprint(one.Ahead)
	}
	return fmt.Sprint(one.Ahead, " ", one.Binding.Scope, " ", one.Binding.Pattern, ":", one.Binding.Rule)
}

// No rule of the policy is waited for while an API pauses the scope, nor in a scope whose rules would admit it.
func TestJoinThatWaitsForNoRule(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, parsedPolicy(t, joinedRules), func(b *bench) {
		placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p/free", ID: "1"}}, 0, QueueAll)
		if err != nil || !placed[0].Waits || waitedFor(placed[0]) != "0" {
			b.t.Errorf("%+v, %v", placed, err)
		}
		b.heed("p/a", refusedFor(time.Minute))
		placed, err = b.Waitlist().Join(ctx, []Waiter{{Scope: "p/a", ID: "1"}}, 0, 0)
		if err != nil || !placed[0].Waits || waitedFor(placed[0]) != "0" || placed[0].Expected != time.Minute {
			b.t.Errorf("%+v, %v", placed, err)
		}
	})
}
