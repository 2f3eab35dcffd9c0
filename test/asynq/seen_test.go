package asynq

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

// "the time of the last wait: asynq overwrites it each time"
func TestLastFailedAtIsTheLastWait(t *testing.T) {
	t.Parallel()
	s := newScene(t, sliding(1, time.Minute), worker.MiddlewareConfig{Hold: -1})
	s.add("task", asynq.MaxRetry(3))
	failed := errors.New("the API answered 500")
	var at atomic.Int64
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 2 * time.Second }},
		func(context.Context, *asynq.Task) error {
			at.Store(time.Now().UnixNano())
			return failed
		})
	s.until("it waits after its failure", func() bool {
		info := s.info("task")
		return info != nil && info.Retried == 1 && time.Until(info.NextProcessAt) > 10*time.Second
	})
	info := s.info("task")
	if info.LastErr != failed.Error() {
		t.Errorf("its last error is %q", info.LastErr)
	}
	if since := info.LastFailedAt.Sub(time.Unix(0, at.Load())); since < time.Second {
		t.Errorf("its last failure is told %s after the real one: asynq no longer overwrites it, and docs/asynq.md may say so", since)
	}
}

// "That task is limited like any other; the members of its group
// spend nothing."
func TestGroups(t *testing.T) {
	t.Parallel()
	s := newScene(t, sliding(10, time.Hour), worker.MiddlewareConfig{})
	for _, id := range []string{"a", "b", "c"} {
		s.add(id, asynq.Group("g"))
	}
	ran := make(chan string, 10)
	s.serve(asynq.Config{
		GroupGracePeriod: time.Second,
		GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
			return asynq.NewTaskWithHeaders("all", nil, tasks[0].Headers())
		}),
	}, func(_ context.Context, task *asynq.Task) error {
		ran <- task.Type()
		return nil
	})
	if kind := <-ran; kind != "all" {
		t.Errorf("a task of type %q ran", kind)
	}
	d, err := s.limiter.Peek(t.Context(), throttle.Request{Scope: "api"})
	if err != nil {
		t.Fatal(err)
	}
	if left := d.Rules[0].Remaining; left != 9 {
		t.Errorf("%d of 10 units are left: three members and one task of theirs spent %d", left, 10-left)
	}
}

// "`Handler` and `Config` suffice for a server of your own, except for the retrying client."
func TestAServerOfYourOwn(t *testing.T) {
	t.Parallel()
	s := newScene(t, sliding(2, time.Second), worker.MiddlewareConfig{})
	client := queue.NewClient(s.rdb, queue.ClientConfig{})
	ids := []string{"1", "2", "3", "4", "5", "6"}
	for _, id := range ids {
		if _, err := client.Enqueue(t.Context(), queue.Task{Type: "call", Scope: "api", ID: id, MaxRetry: queue.Retries(0)}); err != nil {
			t.Fatal(err)
		}
	}
	ran := make(chan string, len(ids))
	server := asynq.NewServerFromRedisClient(s.rdb, s.limits.Config(quick(asynq.Config{Concurrency: 4})))
	err := server.Start(s.limits.Handler(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		ran <- id
		return nil
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.limits.Stop()
		server.Shutdown()
	})
	var got []string
	for range ids {
		got = append(got, <-ran)
	}
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("%v ran", got)
	}
	redistest.WaitFor(t, "all are done", bound, func() bool { return s.counters().Size == 0 })
	if info := s.counters(); info.FailedTotal != 0 || info.Archived != 0 {
		t.Errorf("%d failed, %d archived", info.FailedTotal, info.Archived)
	}
}
