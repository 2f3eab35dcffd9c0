package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// A look gives way as often as there are turns.
func TestGivesWayOften(t *testing.T) {
	t.Parallel()
	const classes, each = 4, 60
	var rules []policy.Rule
	shares := map[string]policy.Share{}
	for i := range classes {
		rules = append(rules, policy.Rule{Name: fmt.Sprint("r", i), Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100, Unit: fmt.Sprint("u", i)})
		shares[fmt.Sprint("c", i)] = policy.Share{Weight: 1}
	}
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules, Scopes: map[string]policy.ScopeConfig{"a": {
		Rules:  []policy.Rule{{Name: "own", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000}},
		Shares: shares,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, pol, func(b *bench) {
		var asks []Waiter
		for i := range classes {
			costs := policy.Costs{policy.Requests: 0, fmt.Sprint("u", i): 100}
			scope := fmt.Sprint("p/a/c", i)
			if d := b.decide(Request{Scope: scope, Costs: costs}); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
			for k := range each {
				asks = append(asks, Waiter{Scope: scope, ID: fmt.Sprint("t", i, ".", k), Costs: policy.Costs{policy.Requests: 0, fmt.Sprint("u", i): 1}})
			}
		}
		if _, err := b.Waitlist().Join(ctx, asks, 0, 0); err != nil {
			b.t.Fatal(err)
		}
		b.pass(sec)
		woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: classes * each})
		if err != nil || len(woken.Granted) != classes*each {
			b.t.Errorf("%d of %d are released: %v", len(woken.Granted), classes*each, err)
		}
	})
}

// One that is first behind many who wait for what it takes nothing of is not overlooked.
func TestBehindManyWhoWaitForAnother(t *testing.T) {
	t.Parallel()
	pol := policyOf(t,
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		policy.Rule{Name: "words", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"})
	words, calls := policy.Costs{"tokens": 20}, policy.Costs{policy.Requests: 1}
	for name, ask := range map[string]func(b *bench){
		"asks": func(b *bench) {
			b.decide(Request{Scope: "p/z", Costs: calls, Turn: Turn{WaiterID: "first", Priority: 1}})
		},
		"lines up": func(b *bench) {
			if _, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p/z", ID: "first", Costs: calls, Priority: 1}}, 0, 0); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, pol, func(b *bench) {
				b.decide(Request{Scope: "p/x", Costs: words})
				for i := range 40 {
					b.decide(Request{Scope: fmt.Sprint("p/s", i), Costs: words, Turn: Turn{WaiterID: "t", Priority: 1}})
				}
				b.decide(Request{Scope: "p/z", Turn: Turn{WaiterID: "second"}, Costs: words})
				ask(b)
				woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 10})
				if err != nil || len(woken.Granted) != 1 || woken.Granted[0].ID != "first" {
					b.t.Errorf("%+v, %v: the one that takes no words should be released", woken, err)
				}
			})
		})
	}
}

// Who ends in line is taken out of it at once, in the middle of a long round too: who was
// behind it has its turn, though it waits for another rule than those before it.
func TestBehindOneThatEnded(t *testing.T) {
	t.Parallel()
	pol := policyOf(t,
		policy.Rule{Name: "tokens", Algorithm: policy.FixedWindow, Limit: 1, Per: time.Hour, Unit: "tokens"},
		policy.Rule{Name: "calls", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000})
	onBoth(t, Config{}, pol, func(b *bench) {
		one := policy.Costs{"requests": 1, "tokens": 1}
		b.decide(Request{Scope: "p/first", Turn: Turn{WaiterID: "first"}, Costs: one})
		var last Waiter
		for i := range 40 {
			last = Waiter{Scope: fmt.Sprintf("p/t%02d", i), ID: fmt.Sprint("dear ", i), Costs: one}
			if d := b.decide(Request{Scope: last.Scope, Turn: Turn{WaiterID: last.ID}, Costs: one}); !d.Position.Waits {
				b.t.Fatalf("%+v", d)
			}
		}
		behind := Waiter{Scope: last.Scope, ID: "cheap", Costs: policy.Costs{"requests": 1, "tokens": 0}}
		b.decide(Request{Scope: behind.Scope, Turn: Turn{WaiterID: behind.ID}, Costs: behind.Costs})
		b.pass(sec)
		if woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 20}); err != nil || len(woken.Granted) != 0 {
			b.t.Fatalf("%+v, %v; they wait for an hour", woken, err)
		}
		woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 20, Deleted: []WaiterRef{last.Ref()}})
		if err != nil || len(woken.Granted) != 1 || woken.Granted[0].ID != behind.ID {
			b.t.Errorf("%+v, %v; want %q", woken, err, behind.ID)
		}
	})
}

// A line that is emptied while its provider is paused is forgotten at once.
func TestEndedInAPause(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 1}), func(b *bench) {
		b.heed("p", turnedDown(10*time.Minute))
		a := Waiter{Scope: "p/a", ID: "a"}
		if d := b.decide(Request{Scope: a.Scope, Turn: Turn{WaiterID: a.ID}}); !d.Position.Waits {
			b.t.Fatalf("%+v", d)
		}
		if woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1}); err != nil || !woken.Waiting {
			b.t.Fatalf("%+v, %v", woken, err)
		}
		if woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, Deleted: []WaiterRef{a.Ref()}}); err != nil || woken.Waiting {
			b.t.Errorf("%+v, %v; nobody waits", woken, err)
		}
		if left := b.rdb.Exists(ctx, b.provider("p")+"!schedule", b.provider("p")+"!meta", b.provider("p")+"!heap").Val(); left != 0 {
			b.t.Errorf("%d keys are left", left)
		}
	})
}

// "A task that ends in line has had no turn": those that lose their patience put the turns of
// their tenant off neither at its own scope nor at any other, however many they are.
func TestEndedHadNoTurn(t *testing.T) {
	t.Parallel()
	all := policy.Rule{Name: "all", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 1}
	own := policy.Rule{Name: "own", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100}
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Rules: []policy.Rule{all}, Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{own}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, policy := range map[string]*policy.Policy{"one level": policyOf(t, all), "two levels": pol} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policy, func(b *bench) {
				ask := func(scope, ticket string) Waiter {
					if d := b.decide(Request{Scope: scope, Turn: Turn{WaiterID: ticket}}); !d.Position.Waits && ticket != "first" {
						b.t.Fatalf("%s does not wait: %+v", ticket, d)
					}
					return Waiter{Scope: scope, ID: ticket}
				}
				ask("p/0", "first")
				const others = 5
				for i := range 10 * others {
					ask(fmt.Sprint("p/", i%others), fmt.Sprint("other ", i))
				}
				last := ask("p/a/0", "impatient 0")
				for i := 1; i <= 30; i++ { // the next one comes before the last has ended
					next := ask(fmt.Sprint("p/a/", i%3), fmt.Sprint("impatient ", i))
					if _, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Deleted: []WaiterRef{last.Ref()}}); err != nil {
						b.t.Fatal(err)
					}
					last = next
				}
				patient := ask("p/a/x", "patient")
				for turns := 1; ; turns++ {
					b.pass(sec)
					woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1})
					if err != nil || len(woken.Granted) != 1 || turns > 2*others+2 {
						b.t.Fatalf("%+v, %v, after %d turns", woken, err, turns)
					}
					got := woken.Granted[0]
					if got.ID == patient.ID {
						return
					}
					b.decide(Request{Scope: got.Scope, Turn: Turn{WaiterID: got.ID}})
				}
			})
		})
	}
}
