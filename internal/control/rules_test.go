package control

import (
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

const ruleLimits = `limits:
  p:
    rules:
      - {name: window, algorithm: fixed-window, limit: 3, per: 30d}
      - {name: bucket, algorithm: token-bucket, limit: 1, per: 1h, burst: 5}
      - {name: sliding, algorithm: sliding-window, limit: 4, per: 1h}
      - {name: month, algorithm: calendar, limit: 10, resets: "0 0 1 * *", timezone: Europe/Berlin}
      - {name: parallel, algorithm: concurrency, limit: 2}
`

// A scope's answer has what is used and left of every rule, when that resets, and how many units wait.
func TestRules(t *testing.T) {
	t.Parallel()
	a := newAsked(t, ruleLimits)
	a.use("p/x")
	a.use("p/x")
	a.enqueue(queue.Task{Scope: "p/y", ID: "waits"}) // for a place
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	rules := a.scope("p/x").Rules
	got, err := a.Rules(t.Context(), admin, "p/x")
	if err != nil || !slices.EqualFunc(got, rules, func(a, b Rule) bool { return a.Rule == b.Rule && a.Used == b.Used && a.Remaining == b.Remaining }) {
		t.Errorf("Rules answers %+v, %v, and Scope %+v", got, err, rules)
	}
	want := []Rule{
		{Rule: "window", Algorithm: policy.FixedWindow, Limit: 3, Used: 2, Remaining: 1},
		{Rule: "bucket", Algorithm: policy.TokenBucket, Limit: 5, Used: 2, Remaining: 3},
		{Rule: "sliding", Algorithm: policy.SlidingWindow, Limit: 4, Used: 2, Remaining: 2},
		{Rule: "month", Algorithm: policy.Calendar, Limit: 10, Used: 2, Remaining: 8},
		{Rule: "parallel", Algorithm: policy.Concurrency, Limit: 2, Used: 2},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	now := time.Now()
	for i, w := range want {
		r := got[i]
		if r.Rule != w.Rule || r.RuleScope != "p" || r.Algorithm != w.Algorithm || r.Limit != w.Limit || r.Used != w.Used || r.Remaining != w.Remaining || r.Waiting != 1 {
			t.Errorf("got %+v, want %+v", r, w)
		}
		reset, in := r.Reset.In(berlin), r.Reset.Sub(now)
		switch r.Rule {
		case "window":
			if r.Reset.UnixNano()%int64(30*24*time.Hour) != 0 || in <= 0 {
				t.Errorf("a fixed window resets at %s", r.Reset)
			}
		case "bucket":
			if in < 110*time.Minute || in > 2*time.Hour+time.Second {
				t.Errorf("two units of a bucket are back in %s, want 2h", in)
			}
		case "sliding":
			if in < 55*time.Minute || in > 62*time.Minute {
				t.Errorf("a sliding window is empty in %s", in)
			}
		case "month":
			if reset.Day() != 1 || reset.Hour() != 0 || reset.Minute() != 0 || in <= 0 || in > 32*24*time.Hour {
				t.Errorf("a month of Berlin begins at %s", reset)
			}
		case "parallel":
			if !r.Reset.IsZero() {
				t.Errorf("no clock frees a place, and yet it is free at %s", r.Reset)
			}
		}
	}
}

// The scopes in which most tasks wait come first, each with its first task's start.
func TestWaiting(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	if got, err := a.Waiting(t.Context(), admin, 5); err != nil || len(got.Fullest) != 0 || got.Scopes != 0 || got.More {
		t.Fatalf("nothing waits: %+v, %v", got, err)
	}
	a.use("daily/x")
	a.use("runs")
	before := time.Now()
	for scope, n := range map[string]int{"daily/x": 3, "daily/y": 1, "runs": 2, "off": 4} {
		for range n {
			a.enqueue(queue.Task{Scope: scope})
		}
	}
	got, err := a.Waiting(t.Context(), admin, 3)
	if err != nil || len(got.Fullest) != 3 || got.Scopes != 4 || got.More {
		t.Fatalf("%+v, %v", got, err)
	}
	seen, err := a.Waiting(t.Context(), Actor{Name: "v", Role: RoleViewer, Scopes: []string{"runs"}}, 3)
	if err != nil || len(seen.Fullest) != 1 || seen.Fullest[0].Scope != "runs" || seen.Scopes != 1 {
		t.Errorf("a viewer of runs is answered %+v, %v", seen, err)
	}
	for i, want := range []WaitingScope{
		{Scope: "off", Waiting: 4, Reason: ReasonSuspended, Rule: "plan", RuleScope: "off"},
		{Scope: "daily/x", Waiting: 3, Reason: ReasonRule, Rule: "plan", RuleScope: "daily"},
		{Scope: "runs", Waiting: 2, Reason: ReasonRun, Rule: "parallel", RuleScope: "runs"},
	} {
		w := got.Fullest[i]
		if w.Scope != want.Scope || w.Waiting != want.Waiting || w.Reason != want.Reason || w.Rule != want.Rule || w.RuleScope != want.RuleScope {
			t.Errorf("got %+v, want %+v", w, want)
		}
		if w.NextStart.IsZero() != (want.Reason != ReasonRule) {
			t.Errorf("next start of %s: %s", w.Scope, w.NextStart)
		}
		if w.FirstSince.Before(before.Add(-time.Second)) || w.FirstSince.After(time.Now()) {
			t.Errorf("the first task of %s has waited since %s", w.Scope, w.FirstSince)
		}
	}
}

// The limit that an API reports stands beside the configured one, and what applies of it.
func TestVendorLimit(t *testing.T) {
	t.Parallel()
	a := newAsked(t, "limits: {api: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1m}]}}\n")
	a.use("api")
	hint := upstream.Hint{Quotas: []upstream.Quota{{
		Unit: "requests", Limit: 4, Remaining: 3, Reset: time.Minute, Window: time.Minute, Source: "ratelimit",
	}}}
	if _, err := a.limits.Report(t.Context(), "api", hint); err != nil {
		t.Fatal(err)
	}
	got, err := a.Rules(t.Context(), admin, "api")
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if r := got[0]; r.Limit != 10 || r.Admits != 4 || r.VendorLimit != 4 || r.Remaining != 3 || r.Used != 1 || r.AdmitsUntil.IsZero() {
		t.Errorf("got %+v; the API has a limit of 4", r)
	}
}

// "For a token bucket it is the burst, whatever its rate is by now": what is used of a bucket is a part of its burst.
func TestCounts(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		rule Rule
		want int64
	}{
		{Rule{Algorithm: policy.SlidingWindow, Limit: 100}, 100},
		{Rule{Algorithm: policy.SlidingWindow, Limit: 100, Admits: 85}, 85},
		{Rule{Algorithm: policy.TokenBucket, Limit: 10, Admits: 85}, 10},
	} {
		if got := one.rule.Counts(); got != one.want {
			t.Errorf("%+v: %d, want %d", one.rule, got, one.want)
		}
	}
}
