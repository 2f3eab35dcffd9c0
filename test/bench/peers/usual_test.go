package peers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// tooMany is the error of the usual way: a denial, with when to come back.
type tooMany struct{ after time.Duration }

func (e *tooMany) Error() string { return fmt.Sprintf("rate limited, retry after %s", e.after) }

// "asynq archived 80 of 100 limited tasks that were on their last attempt": the usual way, a limiter in Redis asked by the handler,
// loses what has no retry left. The same tasks under Headway are all carried out.
func TestTheUsualWayLosesLastAttempts(t *testing.T) {
	t.Parallel()
	const tasks, burst = 100, 20
	t.Run("usual way", func(t *testing.T) {
		t.Parallel()
		rdb, counters := lastAttempts(t, tasks)
		limiter := redis_rate.NewLimiter(rdb)
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
		cfg := quick()
		cfg.IsFailure = func(err error) bool { return !errors.As(err, new(*tooMany)) }
		cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
			if limited, ok := errors.AsType[*tooMany](err); ok {
				return limited.after
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		}
		server := asynq.NewServerFromRedisClient(rdb, cfg)
		must(t, server.Start(handler))
		t.Cleanup(server.Shutdown)
		redistest.WaitFor(t, "every task has ended", 2*time.Minute, func() bool { return counters().ProcessedTotal == tasks })
		if info := counters(); info.Archived != tasks-burst || ran.Load() != burst {
			t.Errorf("%d ran and %d were archived; asynq has changed, and docs/asynq.md with it", ran.Load(), info.Archived)
		}
	})
	t.Run("headway", func(t *testing.T) {
		t.Parallel()
		rdb, counters := lastAttempts(t, tasks)
		rule := sliding(burst, time.Second)
		rule.Name = "rule"
		rules, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"api": {Rules: []policy.Rule{rule}}})
		must(t, err)
		limiter, err := throttle.New(rdb, rules, throttle.Config{})
		must(t, err)
		limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter})
		must(t, err)
		var ran atomic.Int64
		server := limits.NewServer(quick())
		must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			ran.Add(1)
			return nil
		})))
		t.Cleanup(server.Shutdown)
		redistest.WaitFor(t, "every task has run", 2*time.Minute, func() bool { return ran.Load() == tasks })
		if info := counters(); info.Archived != 0 || info.FailedTotal != 0 {
			t.Errorf("%d archived, %d failed", info.Archived, info.FailedTotal)
		}
	})
}

// lastAttempts enqueues n tasks of the scope api, without retries and with asynq alone. It returns
// their Redis, and what asynq counts of them.
func lastAttempts(t *testing.T, n int) (*redis.Client, func() *asynq.QueueInfo) {
	t.Helper()
	rdb := redistest.NewServer(t).Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	for i := range n {
		task := asynq.NewTaskWithHeaders("call", nil, map[string]string{queue.HeaderScope: "api"})
		_, err := client.EnqueueContext(t.Context(), task, asynq.MaxRetry(0), asynq.TaskID(strconv.Itoa(i)))
		must(t, err)
	}
	return rdb, func() *asynq.QueueInfo {
		info, err := inspector.GetQueueInfo("default")
		must(t, err)
		return info
	}
}

// quick has short intervals, so that the test need not wait for asynq's.
func quick() asynq.Config {
	return asynq.Config{Concurrency: 8, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond}
}
