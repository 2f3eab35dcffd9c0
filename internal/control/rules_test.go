package control

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
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

// How a scope stands by few commands is what Scope answers at length.
func TestLevel(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/acme")
	for n := range 3 {
		a.enqueue(queue.Task{Type: "mail", ID: fmt.Sprint(n), Scope: "daily/acme"})
	}
	at, err := a.Limits(t.Context())
	if err != nil || at.Version == nil || at.Version.Number != 1 {
		t.Fatalf("%+v, %v", at, err)
	}
	for _, name := range []string{"daily", "daily/acme"} {
		long, err := a.Scope(t.Context(), admin, name)
		must(t, err)
		got, err := a.Level(t.Context(), name, at)
		if err != nil || got.Waiting != long.Waiting || len(got.Rules) != len(long.Rules) || got.Rules[got.Binding].Rule != "plan" || got.Rules[0].Used != 1 {
			t.Errorf("%s: %+v, %v; at length %+v", name, got, err, long)
		}
		glance, err := a.Glance(t.Context(), name, at)
		if err != nil || glance.Waiting != got.Waiting || glance.Binding != got.Binding || glance.Rules[0].Used != 1 || glance.Rules[0].Limit != 1 {
			t.Errorf("%s at a glance: %+v, %v", name, glance, err)
		}
	}
	if got, err := a.Level(t.Context(), "off", at); err != nil || !got.Suspended {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := a.Level(t.Context(), "nowhere", at); err != nil || !got.Unmatched {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := a.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "daily"); err != nil {
		t.Fatal(err)
	}
	a.follow()
	if at, err = a.Limits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Level(t.Context(), "daily/acme", at); err != nil || got.PausedScope != "daily" || got.PausedBy != "anna" {
		t.Errorf("paused: %+v, %v", got, err)
	}
	names, err := a.Providers(t.Context())
	if want := "[daily free off runs]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("%v, %v; want %s", names, err, want)
	}
}

// The scopes below are those that the limits name and those in which tasks wait; the turns are those of the tasks.
func TestOutlineAndTurns(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/acme")
	for n := range 3 {
		a.enqueue(queue.Task{Type: "mail", ID: fmt.Sprint(n), Scope: "daily/acme"})
	}
	a.enqueue(queue.Task{Type: "mail", ID: "g", Scope: "daily/globex"})
	out, err := a.Outline(t.Context(), "daily", 10)
	if err != nil || out.More || len(out.Branches) != 3 || out.Branches[1].Scope != "daily/acme" || out.Branches[1].Waiting != 3 || out.Branches[0].Waiting != 4 {
		t.Errorf("%+v, %v", out, err)
	}
	turns, err := a.Turns(t.Context(), "daily/acme", 1, 10)
	if err != nil || turns.All != 3 || len(turns.List) != 2 {
		t.Fatalf("%+v, %v", turns, err)
	}
	task, err := a.Task(t.Context(), admin, "1")
	must(t, err)
	if got := turns.List[0]; got.ID != "1" || got.Queue != "default" || got.Position != task[0].Position || got.Start != task[0].Start || got.Reason != task[0].Reason || got.Rule != "plan" {
		t.Errorf("%+v, and the task %+v", got, task[0])
	}
}

// docs/json.md: no_worker is "true for a task that waits while no live worker serves its queue".
func TestNoWorker(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/x")
	a.enqueue(queue.Task{Scope: "daily/x", ID: "one", Queue: "bulk"})
	a.enqueue(queue.Task{Scope: "daily/x", ID: "two", Queue: "other"})
	if !a.task("one").NoWorker || !a.task("two").NoWorker {
		t.Error("no worker runs at all, and that is not said")
	}
	server := asynq.NewServerFromRedisClient(a.rdb, asynq.Config{Queues: map[string]int{"bulk": 1}, LogLevel: asynq.FatalLevel})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	t.Cleanup(server.Shutdown)
	redistest.WaitFor(t, "a worker that serves bulk to be seen", 20*time.Second, func() bool {
		a.Service = New(Config{Redis: a.rdb, Limiter: a.limits, Store: a.store}) // which has read nothing yet
		return !a.task("one").NoWorker
	})
	if !a.task("two").NoWorker {
		t.Error("no worker serves other, and one is said to")
	}
}
