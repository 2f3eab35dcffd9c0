package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
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
