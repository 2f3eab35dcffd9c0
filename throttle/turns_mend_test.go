package throttle

import (
	"fmt"
	"testing"
)

// A look gives way as often as there are turns.
func TestGivesWayOften(t *testing.T) {
	t.Parallel()
	const classes, each = 4, 60
	var rules []Rule
	shares := map[string]Share{}
	for i := range classes {
		rules = append(rules, Rule{Name: fmt.Sprint("r", i), Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 100, Unit: fmt.Sprint("u", i)})
		shares[fmt.Sprint("c", i)] = Share{Weight: 1}
	}
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {Rules: rules, Scopes: map[string]Node{"a": {
		Rules:  []Rule{{Name: "own", Algorithm: TokenBucket, Limit: 1000, Per: sec, Burst: 1000}},
		Shares: shares,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, policy, func(b *bench) {
		var asks []Ask
		for i := range classes {
			costs := Costs{Requests: 0, fmt.Sprint("u", i): 100}
			scope := fmt.Sprint("p/a/c", i)
			if d := b.decide(Request{Scope: scope, Costs: costs}); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
			for k := range each {
				asks = append(asks, Ask{Scope: scope, Ticket: fmt.Sprint("t", i, ".", k), Costs: Costs{Requests: 0, fmt.Sprint("u", i): 1}})
			}
		}
		if _, err := b.LineUp(ctx, asks, 0, 0); err != nil {
			b.t.Fatal(err)
		}
		b.pass(sec)
		woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: classes * each})
		if err != nil || len(woken.Released) != classes*each {
			b.t.Errorf("%d of %d are released: %v", len(woken.Released), classes*each, err)
		}
	})
}

// One that is first behind many who wait for what it takes nothing of is not overlooked.
func TestBehindManyWhoWaitForAnother(t *testing.T) {
	t.Parallel()
	policy := policyOf(t,
		Rule{Name: "calls", Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 100},
		Rule{Name: "words", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"})
	words, calls := Costs{"tokens": 20}, Costs{Requests: 1}
	for name, ask := range map[string]func(b *bench){
		"asks": func(b *bench) { b.decide(Request{Scope: "p/z", Ticket: "first", Costs: calls, Priority: 1}) },
		"lines up": func(b *bench) {
			if _, err := b.LineUp(ctx, []Ask{{Scope: "p/z", Ticket: "first", Costs: calls, Priority: 1}}, 0, 0); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policy, func(b *bench) {
				b.decide(Request{Scope: "p/x", Costs: words})
				for i := range 40 {
					b.decide(Request{Scope: fmt.Sprint("p/s", i), Ticket: "t", Costs: words, Priority: 1})
				}
				b.decide(Request{Scope: "p/z", Ticket: "second", Costs: words})
				ask(b)
				woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 10})
				if err != nil || len(woken.Released) != 1 || woken.Released[0].Ticket != "first" {
					b.t.Errorf("%+v, %v: the one that takes no words should be released", woken, err)
				}
			})
		})
	}
}
