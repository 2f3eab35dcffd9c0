package worker

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// looks counts the looks for tasks that reach Redis, and the glances that take their place.
type looks struct {
	failing
	mu sync.Mutex
	n  int
}

func (l *looks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, ok := asynqx.Dequeues(context.Background(), scriptKeys(cmd)); ok {
			l.mu.Lock()
			l.n++
			l.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (l *looks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "exists" {
			l.mu.Lock()
			l.n++
			l.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}

func (l *looks) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// An idle asynq server looks for tasks every TaskCheckInterval, and once more after
// each kick, at once; it stops at once.
func TestIdleServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		seen := &looks{}
		rdb.AddHook(seen)
		policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: perHour(1)}})
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := throttle.New(rdb, policy, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		limits, err := NewMiddleware(MiddlewareConfig{Redis: rdb, Limiter: limiter})
		if err != nil {
			t.Fatal(err)
		}
		server := limits.NewServer(asynq.Config{LogLevel: asynq.FatalLevel})
		ran := make(chan time.Time, 1)
		client := asynq.NewClientFromRedisClient(rdb)
		if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			ran <- time.Now()
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		// The pauses between looks are spread evenly over 50 to 150 ms: the standard
		// deviation of their number in a minute is 7.
		before := seen.count()
		if before < 560 || before > 640 {
			t.Errorf("an idle server looks for tasks %d times a minute, want 600", before)
		}
		if _, err := client.Enqueue(asynq.NewTask("work", nil)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		limits.servers.Kick()
		if late := (<-ran).Sub(began); late > 2*asynqx.RoundPause {
			t.Errorf("kicked, it found a task after %s", late)
		}
		began = time.Now()
		server.Stop()
		if took := time.Since(began); took > 2*asynqx.RoundPause {
			t.Errorf("it stopped after %s", took)
		}
		server.Shutdown()
		if !limits.servers.None() {
			t.Error("a server that is shut down is still kicked")
		}
		if err := server.Start(asynq.NotFoundHandler()); err == nil {
			t.Error("a server that was stopped starts again")
		}
	})
}
