package asynq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/worker"
)

// tooMany is the error of the usual way: a denial, with when to come back.
type tooMany struct{ after time.Duration }

func (e *tooMany) Error() string { return fmt.Sprintf("rate limited, retry after %s", e.after) }

// "asynq archived 80 of 100 limited tasks that were on their last attempt": the
// usual way, a limiter in Redis asked by the handler, loses what has no retry
// left. The same tasks under Headway are all carried out.
func TestTheUsualWayLosesLastAttempts(t *testing.T) {
	t.Parallel()
	const tasks, burst = 100, 20
	t.Run("usual way", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, sliding(burst, time.Hour), worker.MiddlewareConfig{})
		limiter := redis_rate.NewLimiter(s.rdb)
		limit := redis_rate.Limit{Rate: 1, Burst: burst, Period: time.Hour}
		var ran atomic.Int64
		handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			res, err := limiter.Allow(ctx, "api", limit)
			if err != nil {
				return err
			}
			if res.Allowed == 0 {
				return &tooMany{res.RetryAfter}
			}
			ran.Add(1)
			return nil
		})
		for i := range tasks {
			s.add(fmt.Sprint(i), asynq.MaxRetry(0))
		}
		server := asynq.NewServerFromRedisClient(s.rdb, quick(asynq.Config{
			Concurrency: 8,
			IsFailure:   func(err error) bool { return !errors.As(err, new(*tooMany)) },
			RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
				if limited, ok := errors.AsType[*tooMany](err); ok {
					return limited.after
				}
				return asynq.DefaultRetryDelayFunc(n, err, task)
			},
		}))
		if err := server.Start(handler); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Shutdown)
		s.until("every task has ended", func() bool { return s.counters().ProcessedTotal == tasks })
		info := s.counters()
		if info.Archived != tasks-burst || ran.Load() != burst {
			t.Errorf("%d ran and %d were archived; asynq has changed, and docs/asynq.md with it", ran.Load(), info.Archived)
		}
	})
	t.Run("headway", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, sliding(burst, time.Second), worker.MiddlewareConfig{})
		var ran atomic.Int64
		for i := range tasks {
			s.add(fmt.Sprint(i), asynq.MaxRetry(0))
		}
		s.serve(asynq.Config{Concurrency: 8}, func(context.Context, *asynq.Task) error {
			ran.Add(1)
			return nil
		})
		s.until("every task has run", func() bool { return ran.Load() == tasks })
		if info := s.counters(); info.Archived != 0 || info.FailedTotal != 0 {
			t.Errorf("%d archived, %d failed", info.Archived, info.FailedTotal)
		}
	})
}
