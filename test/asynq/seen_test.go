package asynq

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

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

// "That task is limited like any other; the members of its group spend nothing."
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
	must(t, err)
	if left := d.Rules[0].Remaining; left != 9 {
		t.Errorf("%d of 10 units are left: three members and one task of theirs spent %d", left, 10-left)
	}
}
