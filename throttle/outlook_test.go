package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// TestOutlook holds what Outlook tells against what was charged and lined up.
func TestOutlook(t *testing.T) {
	t.Parallel()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p q": {
		Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: sec}, {Name: "held", Algorithm: policy.Concurrency, Limit: 9}},
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{
			{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 2},
			{Name: "off", Algorithm: policy.FixedWindow, Limit: 0, Per: sec},
		}}},
	}, "s": {Rules: []policy.Rule{{Name: "all", Algorithm: policy.SlidingWindow, Limit: 3, Per: 10 * sec}}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(redistest.Client(t), policy, Config{Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	asks := []Waiter{
		{Scope: "p q/a*", ID: "1"}, {Scope: "p q/a*", ID: "2", Cost: 2}, {Scope: "p q/b", ID: "3"},
		{Scope: "p q", ID: "4"},
	}
	if _, err := l.Waitlist().Join(t.Context(), asks, 0, 0); err != nil {
		t.Fatal(err)
	}
	got, err := l.Forecast(t.Context(), "p q/a*")
	if err != nil {
		t.Fatal(err)
	}
	// The task of the provider itself has room, but the others were before it.
	type rule struct {
		name           string
		units          int64
		per            time.Duration
		waiting, lines int64
	}
	want := []rule{
		{"account", 5, 1005 * ms, 5, 3},
		{"held", 0, 0, 4, 3},          // a place for each
		{"tenant", 2, 201 * ms, 3, 1}, // 10 in 1.005s, in least terms
		{"off", 0, 0, 3, 1},
	}
	if got.Waiting != 3 || len(got.Rules) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, r := range got.Rules {
		if w := want[i]; r.Units*int64(w.per) != w.units*int64(r.Per) || (rule{r.Rule, w.units, w.per, r.Waiting, r.Queues}) != w {
			t.Errorf("got %+v, want %+v", r, w)
		}
	}
	// Of those to whom nobody was before one goes straight to asynq, and is charged then.
	straight := []Waiter{{Scope: "s/a", ID: "5", Cost: 2}, {Scope: "s/a", ID: "6", Cost: 2}}
	if _, err := l.Waitlist().Join(t.Context(), straight, 0, 0); err != nil {
		t.Fatal(err)
	}
	for scope, want := range map[string][2]int64{"s/a": {1, 2}, "s/b": {1, 0}} {
		if got, err = l.Forecast(t.Context(), scope); err != nil || got.Rules[0].Remaining != want[0] || got.Waiting != want[1] {
			t.Errorf("%s: %+v %v", scope, got, err)
		}
	}
	if _, err := l.Forecast(t.Context(), "elsewhere"); err == nil {
		t.Error("a scope without rules has an outlook")
	}
}

// "Rest is the time until … a window that opens on use" ends: "Per while none is open".
func TestForecastOfAWindowOnUse(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 2, Per: sec, OpensOnUse: true}
	onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
		rest := func(want time.Duration) {
			b.t.Helper()
			f, err := b.Forecast(ctx, "p/x")
			if err != nil || f.Rules[0].Rest != want || f.Rules[0].Per != sec {
				b.t.Errorf("%+v %v, want a rest of %v", f.Rules, err, want)
			}
		}
		b.at(200e3)
		rest(sec)
		b.decide(Request{Scope: "p/x"})
		b.at(500e3)
		rest(700 * ms)
		b.at(1200e3)
		rest(sec)
	})
}
