package throttle

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func (b *bench) scope(scope string) QueueStats {
	b.t.Helper()
	got, err := b.Inspect(context.Background(), scope)
	noError(b.t, err)
	return got
}

func (b *bench) ticket(scope, ticket string, cost int64) WaiterStatus {
	b.t.Helper()
	got, err := b.Waitlist().InspectWaiter(context.Background(), Waiter{Scope: scope, ID: ticket, Cost: cost})
	noError(b.t, err)
	return got
}

// ask has one ask with a ticket under an id of its own, and returns the answer.
func (b *bench) ask(scope, ticket string, cost int64) Decision {
	b.t.Helper()
	return b.decide(Request{Scope: scope, Turn: Turn{WaiterID: ticket}, Cost: cost, ID: NewID()})
}

func (b *bench) wake(provider string, most int) Dispatched {
	b.t.Helper()
	woken, err := b.Waitlist().Dispatch(context.Background(), DispatchRequest{Provider: provider, Lead: 10 * ms, Max: most, CheckAll: true})
	noError(b.t, err)
	return woken
}

// tenants is a policy of provider p with rules for it and for each tenant.
func tenants(t testing.TB, provider string, rules, tenant []policy.Rule) *policy.Policy {
	t.Helper()
	return limitsOf(t, map[string]policy.ScopeConfig{provider: {Rules: rules, Scopes: map[string]policy.ScopeConfig{"*": {Rules: tenant}}}})
}

// "The place, the rule that binds, the expected start", as the decision that gave the place said.
func TestInspectTicket(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(10, 2)), func(b *bench) {
		b.ask("p/x", "a", 2)
		if got, want := b.scope("p/x"), (QueueStats{At: time.UnixMicro(epoch), NextStart: unknowable}); got != want {
			t.Errorf("with nobody waiting: %+v", got)
		}
		tickets := []string{"b", "c", "d"}
		for n, ticket := range tickets {
			turn := b.ask("p/x", ticket, 2).Position
			got := b.ticket("p/x", ticket, 2)
			want := WaiterStatus{At: time.UnixMicro(epoch), Waits: true, Ahead: int64(n), Expected: exactly(time.Duration(n+1) * 200 * ms), Binding: got.Binding}
			if got != want || got.Binding.Rule.Name != "r" || got.Binding.Scope.String() != "p" || turn.Ahead != got.Ahead || turn.Expected != got.Expected.In {
				t.Errorf("%s: %+v, told %+v", ticket, got, turn)
			}
		}
		if got := b.scope("p/x"); got.Waiting != 3 || got.Queues != 1 || got.Dispatched != 0 || got.NextStart.In != 200*ms || got.Binding.Rule.Name != "r" {
			t.Errorf("the scope: %+v", got)
		}
		for _, other := range []Waiter{{ID: "a", Cost: 2}, {ID: "b", Cost: 1}, {ID: "nobody"}} {
			if got := b.ticket("p/x", other.ID, other.Cost); got != (WaiterStatus{At: time.UnixMicro(epoch)}) {
				t.Errorf("%+v, who does not wait: %+v", other, got)
			}
		}

		b.at(195_000)
		if woken := b.wake("p", 10); len(woken.Granted) != 1 || woken.Granted[0].ID != "b" {
			t.Fatalf("%+v", woken)
		}
		if got := b.ticket("p/x", "b", 2); got.Waits || !got.Dispatched {
			t.Errorf("released: %+v", got)
		}
		if got := b.scope("p/x"); got.Waiting != 2 || got.Dispatched != 1 || got.NextStart.In != 205*ms {
			t.Errorf("after b was released: %+v", got)
		}
		if got := b.ticket("p/x", "d", 2); got.Ahead != 1 || got.Expected.In != 405*ms {
			t.Errorf("d, after b was released: %+v", got)
		}
		b.at(4_000_000)
		if got := b.scope("p/x"); got.Dispatched != 0 || got.NextStart.In != 0 {
			t.Errorf("when b has not come for long: %+v", got)
		}
		if got := b.ticket("p/x", "d", 2); got.Expected.In != 200*ms {
			t.Errorf("d, after the bucket was idle: %+v", got)
		}
	})
}

// The rule that binds is the one that asks for the longest wait, whichever level it
// stands at; a full concurrency rule and one that can never admit have no clock.
func TestInspectBinding(t *testing.T) {
	t.Parallel()
	runs := func(limit int64) policy.Rule {
		return policy.Rule{Name: "runs", Algorithm: policy.Concurrency, Limit: limit}
	}
	slow := policy.Rule{Name: "slow", Algorithm: policy.SlidingWindow, Limit: 2, Per: 10 * sec}
	tests := map[string]struct {
		provider, tenant policy.Rule
		binding          string
		expected         []time.Duration // of those who wait
	}{
		"provider":       {bucket(1, 1), slow, "r", []time.Duration{sec, 10 * sec, 10 * sec}},
		"tenant":         {bucket(100, 9), slow, "slow", []time.Duration{10 * sec, 10 * sec, 20 * sec}},
		"no place":       {bucket(100, 9), runs(1), "runs", []time.Duration{Never, Never, Never}},
		"places to come": {bucket(1, 1), runs(2), "r", []time.Duration{sec, 2 * sec, 3 * sec}},
		"suspended":      {bucket(100, 9), bucket(0, 1), "r", []time.Duration{Never, Never, Never}},
	}
	for name, test := range tests {
		policy := tenants(t, "p", []policy.Rule{test.provider}, []policy.Rule{test.tenant})
		onBothIn(t, name, Config{}, policy, func(b *bench) {
			waits := 0
			for n := 0; waits < len(test.expected); n++ {
				ticket := fmt.Sprint(n)
				if b.ask("p/x", ticket, 1).Allowed {
					continue
				}
				got := b.ticket("p/x", ticket, 1)
				if got.Ahead != int64(waits) || got.Expected.In != test.expected[waits] || waits == 0 && got.Binding.Rule.Name != test.binding {
					b.t.Errorf("%d is before it: %+v, want %s", waits, got, test.expected[waits])
				}
				waits++
			}
			if got := b.scope("p/x"); got.NextStart.In != test.expected[0] || got.Binding.Rule.Name != test.binding || got.Waiting != 3 {
				b.t.Errorf("the scope: %+v", got)
			}
		})
	}
}

// A scope tells of those below it too, and of nobody beside it, whatever their names.
func TestInspectBelow(t *testing.T) {
	t.Parallel()
	const provider = hostileProvider
	policy := limitsOf(t, map[string]policy.ScopeConfig{provider: {
		Rules:  []policy.Rule{bucket(10, 1)},
		Scopes: map[string]policy.ScopeConfig{"*": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "%2F\u00fc", Algorithm: policy.FixedWindow, Limit: 1, Per: 3600 * sec}}}}}},
	}})
	onBoth(t, Config{}, policy, func(b *bench) {
		scopes := []string{provider + "/a", provider + "/a/x:y!queue", provider + "/a/%", provider + "/a b*", provider + "/ab/[^x]", provider}
		b.ask(provider, "first", 1)
		for _, scope := range scopes {
			for _, ticket := range []string{"one :{*}", "two\x00/"} {
				if b.ask(scope, ticket, 1).Allowed {
					t.Fatalf("%q was granted", scope)
				}
			}
		}
		for scope, want := range map[string]QueueStats{
			provider:                   {Waiting: 12, Queues: 6},
			provider + "/a":            {Waiting: 6, Queues: 3},
			provider + "/a/x:y!queue":  {Waiting: 2, Queues: 1},
			provider + "/a/%":          {Waiting: 2, Queues: 1},
			provider + "/a/%25":        {},
			provider + "/ab":           {Waiting: 2, Queues: 1},
			provider + "/a b*":         {Waiting: 2, Queues: 1},
			provider + "/nobody/waits": {},
		} {
			if got := b.scope(scope); got.Waiting != want.Waiting || got.Queues != want.Queues || want.Queues > 0 && got.NextStart.In == Never {
				t.Errorf("%q: %+v, want %+v", scope, got, want)
			}
		}
		if got := b.scope(provider); got.NextStart.In != 100*ms || got.Binding.Rule.Name != "r" {
			t.Errorf("the provider: %+v, want the first in 100ms", got)
		}
		if got := b.ticket(provider+"/a/x:y!queue", "two\x00/", 1); !got.Waits || got.Ahead != 1 {
			t.Errorf("a ticket: %+v", got)
		}
		b.at(95_000)
		if woken := b.wake(provider, 1); len(woken.Granted) != 1 {
			t.Fatalf("%+v", woken)
		}
		if got := b.scope(provider); got.Waiting != 11 || got.Dispatched != 1 {
			t.Errorf("with one released: %+v", got)
		}
	})
}

// "Both change nothing."
func TestInspectChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, tenants(t, "p", []policy.Rule{bucket(10, 1)}, everyRule))
	for _, ticket := range []string{"a", "b", "c"} {
		b.ask("p/x", ticket, 1)
	}
	b.wake("p", 1)
	dump := func() map[string]string {
		all := map[string]string{}
		for _, key := range b.rdb.Keys(ctx, b.cfg.Prefix+":*").Val() {
			all[key] = b.rdb.Dump(ctx, key).Val()
		}
		return all
	}
	before := dump()
	b.at(50_000)
	b.scope("p")
	b.ticket("p/x", "c", 1)
	if after := dump(); len(before) == 0 || !maps.Equal(before, after) {
		t.Errorf("keys were changed:\n%q\n%q", before, after)
	}
}
