package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/metrics"
)

// "Runnable are the tasks that could start now had they a worker": those in pending, and those that wait while their rules have
// room. Limited tasks are not among them.
func TestSnapshotRunnable(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: time.Hour}}, MiddlewareConfig{})
	s.throttle.Config(asynq.Config{Concurrency: 4})
	client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.throttle.cfg.Limiter})
	began, limiter := time.Now(), s.throttle.cfg.Limiter
	for range 5 {
		if d, err := limiter.Allow(t.Context(), "p"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for n := range 20 {
		if _, err := client.Enqueue(t.Context(), queue.Task{Type: "any", Scope: "p", ID: fmt.Sprint(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := s.client.Enqueue(asynq.NewTask("any", nil), asynq.Queue("low")); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func() metrics.Snapshot {
		t.Helper()
		got, err := s.throttle.Snapshot(t.Context())
		must(t, err)
		return got
	}
	got := snapshot()
	if r := got.Survey.Rules[0]; r.Used != 5 || r.Waiting != 20 || len(got.Queues) != 2 || got.Queues[0] != (metrics.QueueTasks{Name: "default"}) || got.Queues[1].Runnable != 3 {
		t.Errorf("all of default wait: %+v, %+v", r, got.Queues)
	}
	more, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 8, Per: time.Hour}}}})
	must(t, err)
	limiter.SetPolicy(more)
	if got = snapshot(); got.Queues[0].Runnable != 3 || got.UsefulWorkers != 3./4 { // this process serves default alone
		t.Errorf("three have room: %+v, %v useful workers", got.Queues, got.UsefulWorkers)
	}
	if since := got.Oldest[0].Sub(began); since < -time.Second || since > bound {
		t.Errorf("the oldest wait began at %v, %v", got.Oldest[0], began)
	}
	must(t, s.inspector.PauseQueue("low"))
	if got = snapshot(); got.Queues[1].Runnable != 0 {
		t.Errorf("a paused queue: %+v", got.Queues)
	}
}

// The oldest wait under a rule is that of the first tasks: by their headers, or about when they took their places.
func TestSnapshotOldest(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour}}, MiddlewareConfig{})
	limiter := s.throttle.cfg.Limiter
	if d, err := limiter.Allow(t.Context(), "p/x"); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	wait := func(scope, id string, headers map[string]string) {
		t.Helper()
		if _, err := s.client.Enqueue(asynq.NewTaskWithHeaders("any", nil, headers), asynq.TaskID(id), asynq.ProcessIn(time.Hour)); err != nil {
			t.Fatal(err)
		}
		joined, err := limiter.Waitlist().Join(t.Context(), []throttle.Waiter{{Scope: scope, ID: queue.Ticket("default", id)}}, 0, throttle.QueueAll)
		if err != nil || !joined[0].Waits {
			t.Fatal(joined, err)
		}
	}
	oldest := func() time.Time {
		t.Helper()
		got, err := s.throttle.Snapshot(t.Context())
		if err != nil || len(got.Oldest) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		return got.Oldest[0]
	}
	began := time.Now()
	wait("p/a", "foreign", nil)
	if at := oldest(); at.Before(began.Add(-time.Minute)) || at.After(time.Now().Add(time.Minute)) {
		t.Errorf("without a header it waits since %s, and joined at %s", at, began)
	}
	due := map[string]time.Time{"p/b": began.Add(-3 * time.Hour).Truncate(time.Second), "p/c": began.Add(-2 * time.Hour)}
	for scope, at := range due {
		wait(scope, "of "+scope[2:], map[string]string{queue.HeaderDue: at.Format(time.RFC3339Nano)})
	}
	if at := oldest(); !at.Equal(due["p/b"]) {
		t.Errorf("the oldest of three waits since %s, want %s", at, due["p/b"])
	}
}
