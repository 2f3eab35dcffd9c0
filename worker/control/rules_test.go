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
	want := []struct {
		Rule
		from, to time.Duration // of its reset
	}{
		{Rule{Rule: "window", Algorithm: policy.FixedWindow, Limit: 3, Used: 2, Remaining: 1}, 0, 30 * 24 * time.Hour},
		{Rule{Rule: "bucket", Algorithm: policy.TokenBucket, Limit: 5, Used: 2, Remaining: 3}, 110 * time.Minute, 2*time.Hour + time.Second},
		{Rule{Rule: "sliding", Algorithm: policy.SlidingWindow, Limit: 4, Used: 2, Remaining: 2}, 55 * time.Minute, 62 * time.Minute},
		{Rule{Rule: "month", Algorithm: policy.Calendar, Limit: 10, Used: 2, Remaining: 8}, 0, 32 * 24 * time.Hour},
		{Rule{Rule: "parallel", Algorithm: policy.Concurrency, Limit: 2, Used: 2}, 0, 0}, // no clock frees a place
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i, w := range want {
		r := got[i]
		if r.Rule != w.Rule.Rule || r.RuleScope != "p" || r.Algorithm != w.Algorithm || r.Limit != w.Limit || r.Used != w.Used || r.Remaining != w.Remaining || r.Waiting != 1 {
			t.Errorf("got %+v, want %+v", r, w)
		}
		if in := time.Until(r.Reset.Time); w.to == 0 && !r.Reset.IsZero() || w.to > 0 && (in <= w.from || in > w.to) {
			t.Errorf("%s resets in %s, want %s to %s", r.Rule, in, w.from, w.to)
		}
	}
	if month := got[3].Reset.In(berlin); month.Day() != 1 || month.Hour() != 0 || month.Minute() != 0 || got[0].Reset.UnixNano()%int64(30*24*time.Hour) != 0 {
		t.Errorf("a month of Berlin begins at %s, and a fixed window at %s", month, got[0].Reset)
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
		a.fill(scope, n)
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
		{Scope: "off", Waiting: 4, Wait: Wait{ReasonSuspended, "plan", "off"}},
		{Scope: "daily/x", Waiting: 3, Wait: Wait{ReasonRule, "plan", "daily"}},
		{Scope: "runs", Waiting: 2, Wait: Wait{ReasonRun, "parallel", "runs"}},
	} {
		w := got.Fullest[i]
		if w.Scope != want.Scope || w.Waiting != want.Waiting || w.Reason != want.Reason || w.Rule != want.Rule || w.RuleScope != want.RuleScope ||
			w.NextStart.IsZero() != (want.Reason != ReasonRule) || w.FirstSince.Before(before.Add(-time.Second)) || w.FirstSince.After(time.Now()) {
			t.Errorf("got %+v, want %+v", w, want)
		}
	}
}

// The limit that an API reports stands beside the configured one, and what applies of it.
func TestVendorLimit(t *testing.T) {
	t.Parallel()
	a := newAsked(t, "limits: {api: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1m}]}}\n")
	a.use("api")
	hint := upstream.Hint{Quotas: []upstream.Quota{{Unit: "requests", Limit: 4, Remaining: 3, Reset: time.Minute, Window: time.Minute}}}
	_, err := a.limits.Report(t.Context(), "api", hint)
	must(t, err)
	got, err := a.Rules(t.Context(), admin, "api")
	must(t, err)
	if r := got[0]; r.Limit != 10 || r.Admits != 4 || r.Counts() != 4 || r.VendorLimit != 4 || r.Remaining != 3 || r.Used != 1 || r.AdmitsUntil.IsZero() {
		t.Errorf("got %+v; the API has a limit of 4", r)
	}
	if got := (Rule{Algorithm: policy.TokenBucket, Limit: 10, Admits: 85}).Counts(); got != 10 {
		t.Errorf("%d of a bucket count, want its burst", got)
	}
}

// How a scope stands by few commands is what Scope answers at length. The scopes below it are those that the limits name and those in
// which tasks wait; the turns are those of the tasks.
func TestLevel(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/acme")
	a.fill("daily/acme", 3)
	at, err := a.Limits(t.Context())
	if err != nil || at.Version == nil || at.Version.Number != 1 {
		t.Fatalf("%+v, %v", at, err)
	}
	for _, name := range []string{"daily", "daily/acme"} {
		long := a.scope(name)
		got, err := a.Level(t.Context(), name, at)
		if err != nil || got.Waiting != long.Waiting || len(got.Rules) != len(long.Rules) || got.Rules[got.Binding].Rule != "plan" || got.Rules[0].Used != 1 {
			t.Errorf("%s: %+v, %v; at length %+v", name, got, err, long)
		}
	}
	if got, err := a.Level(t.Context(), "off", at); err != nil || !got.Suspended {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := a.Level(t.Context(), "nowhere", at); err != nil || !got.Unmatched {
		t.Errorf("%+v, %v", got, err)
	}
	names, err := a.Providers(t.Context())
	if want := "[daily free off runs]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("%v, %v; want %s", names, err, want)
	}
	a.fill("daily/globex", 1)
	out, err := a.Outline(t.Context(), "daily", 10)
	if err != nil || out.More || len(out.Branches) != 3 || out.Branches[1].Scope != "daily/acme" || out.Branches[1].Waiting != 3 || out.Branches[0].Waiting != 4 {
		t.Errorf("%+v, %v", out, err)
	}
	turns, err := a.Turns(t.Context(), "daily/acme", 1, 10)
	if err != nil || turns.All != 3 || len(turns.List) != 2 {
		t.Fatalf("%+v, %v", turns, err)
	}
	task := a.task("daily/acme1")
	if got := turns.List[0]; got.ID != task.ID || got.Queue != "default" || got.Position != task.Position || got.Start != task.Start || got.Reason != task.Reason || got.Rule != "plan" {
		t.Errorf("%+v, and the task %+v", got, task)
	}
	a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "daily"))
	at, err = a.Limits(t.Context())
	must(t, err)
	if got, err := a.Level(t.Context(), "daily/acme", at); err != nil || got.PausedScope != "daily" || got.PausedBy != "anna" {
		t.Errorf("paused: %+v, %v", got, err)
	}
}

// docs/json.md: no_worker is "true for a task that waits while no live worker serves its queue".
func TestNoWorker(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/x")
	a.enqueue(queue.Task{Scope: "daily/x", ID: "one", Queue: "bulk"}, queue.Task{Scope: "daily/x", ID: "two", Queue: "other"})
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
