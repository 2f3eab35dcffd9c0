package throttle

import (
	"context"
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

// TestPace holds that what Forecast says of a rule is how fast it goes on, to a thousandth. What a margin
// costs of it is at most what it and the start tolerance are of per, as docs/algorithms.md says.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"bucket":             {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec},
		"bucket, burst":      {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Burst: 7},
		"bucket, margin":     {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Margin: 20 * ms},
		"bucket, both":       {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Burst: 2, Margin: 40 * ms},
		"bucket, unpaid":     {Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Margin: 10 * ms},
		"bucket, half paid":  {Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 3, Margin: 35 * ms},
		"bucket, paid":       {Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 3, Margin: 10 * ms},
		"bucket, slow":       {Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Margin: 50 * ms},
		"bucket, wide both":  {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Burst: 9, Margin: 40 * ms},
		"sliding":            {Name: "r", Algorithm: policy.SlidingWindow, Limit: 40, Per: sec},
		"sliding, cells":     {Name: "r", Algorithm: policy.SlidingWindow, Limit: 250, Per: sec, Margin: 7 * ms},
		"fixed":              {Name: "r", Algorithm: policy.FixedWindow, Limit: 40, Per: sec},
		"on use, and margin": {Name: "r", Algorithm: policy.FixedWindow, Limit: 40, Per: sec, Margin: 100 * ms, OpensOnUse: true},
		"fixed, with margin": {Name: "r", Algorithm: policy.FixedWindow, Limit: 40, Per: sec, Margin: 100 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Client(t), Config{StartTolerance: 5 * ms}, policyOf(t, rule))
			const many = 1000
			b.at(0)
			first, last := int64(0), int64(0)
			at := int64(0)
			for i := range many {
				b.at(at)
				for d := b.decide(Request{Scope: "p"}); !d.Allowed; d = b.decide(Request{Scope: "p"}) {
					at += d.RetryAfter.Microseconds()
					b.at(at)
				}
				if i == many/2 {
					first = at
				}
				last = at
			}
			o, err := b.Forecast(context.Background(), "p")
			if err != nil {
				t.Fatal(err)
			}
			r := o.Rules[0]
			late := 5*ms + rule.Margin
			if bound := int64(many/2-1) * (rule.Per + late).Microseconds() / rule.Limit; rule.Algorithm == policy.TokenBucket && last-first > bound+many {
				t.Errorf("%d units took %d µs: %v of lateness may make that %d at most", many/2-1, last-first, late, bound)
			}
			want := float64(many/2-1) / float64(r.Units) * float64(r.Per.Microseconds())
			// A window gives all of its units at once.
			if off, most := float64(last-first)-want, want/1000+float64(windowOf(r)); off > most || -off > most {
				t.Errorf("%d units took %d µs, and should take %.0f", many/2-1, last-first, want)
			}
		})
	}
}

func windowOf(r RuleForecast) int64 {
	if r.Algorithm == policy.TokenBucket {
		return 0
	}
	return r.Per.Microseconds()
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
