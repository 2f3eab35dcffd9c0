package asynq

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/worker"
)

// docs/from-redis-rate.md: tasks that a limiter in the handler has denied, each on its last attempt by now, are run by a
// worker of Headway's, and none is archived.
func TestTasksOfTheUsualWay(t *testing.T) {
	t.Parallel()
	const tasks = 12
	s := newScene(t, sliding(4, time.Second), worker.MiddlewareConfig{})
	for i := range tasks {
		s.add(strconv.Itoa(i), asynq.MaxRetry(1))
	}
	usual := asynq.NewServerFromRedisClient(s.rdb, quick(asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	}))
	must(t, usual.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("rate limited") })))
	s.until("all are denied", func() bool { return s.counters().Retry == tasks })
	usual.Shutdown()
	for i := range tasks {
		if info := s.info(strconv.Itoa(i)); info == nil || info.Retried != 1 || info.MaxRetry != 1 {
			t.Fatalf("task %d is not on its last attempt: %+v", i, info)
		}
	}
	_, err := s.inspector.RunAllRetryTasks("default") // their hour is over
	must(t, err)
	var ran atomic.Int64
	s.serve(asynq.Config{Concurrency: 8}, func(context.Context, *asynq.Task) error {
		ran.Add(1)
		return nil
	})
	s.until("all have run", func() bool { return ran.Load() == tasks })
	s.until("none is left", func() bool { c := s.counters(); return c.Size == 0 || c.Archived > 0 })
	if c := s.counters(); c.Archived != 0 || ran.Load() != tasks {
		t.Errorf("%d archived, %d ran", c.Archived, ran.Load())
	}
}
