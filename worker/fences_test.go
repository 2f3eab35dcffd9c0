package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
)

// copies keeps what asynq has sent to put a task back, for the network to bring it again.
type copies struct {
	mu   sync.Mutex
	sent [][]any
}

func (c *copies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *copies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.keep(cmd)
		return err
	}
}

func (c *copies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.keep(cmd)
		}
		return err
	}
}

func (c *copies) keep(cmd redis.Cmder) {
	if keys := scriptKeys(cmd); cmd.Err() == nil && slices.Contains(keys, "asynq:{default}:active") && slices.Contains(keys, "asynq:{default}:retry") &&
		slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, ":failed") }) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent = append(c.sent, cmd.Args())
	}
}

// "The end of one run does not end the next": what put a task back comes again while the task runs anew, also when a
// heartbeat has renewed its lease.
func TestLateCopyOfAnEnd(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, s *system, renewed time.Duration) {
		t.Helper()
		seen := &copies{}
		s.rdb.AddHook(seen)
		s.addForeign("t", asynq.MaxRetry(5))
		late := make(chan error, 1)
		s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, func(ctx context.Context, _ *asynq.Task) error {
			if n, _ := asynq.GetRetryCount(ctx); n == 0 {
				return errors.New("once more")
			}
			<-time.After(renewed)
			seen.mu.Lock()
			sent := slices.Clone(seen.sent)
			seen.mu.Unlock()
			for _, args := range sent {
				late <- s.rdb.Do(context.Background(), args...).Err()
			}
			return nil
		})
		if err := <-late; !redis.HasErrorPrefix(err, "FENCED") {
			t.Errorf("a copy that comes late is answered %v, want FENCED", err)
		}
		s.until("it is done", func() bool { return s.info("t") == nil })
		if n := s.ran("t"); n != 2 {
			t.Errorf("it ran %d times, want twice", n)
		}
	}
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		run(t, newSystem(t, perHour(100), Config{}), 0)
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{"p": {Rules: perHour(100)}})
			if err != nil {
				t.Fatal(err)
			}
			_, rdb := redistest.Miniredis(t)
			run(t, newSystemOn(t, rdb, policy, Config{}), 20*time.Second)
		})
	})
}

// "A refusal of the only copy that was sent is no late copy's": a lease that another's heartbeat has overwritten leaves no
// task active.
func TestOverwrittenLease(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), Config{})
	s.addForeign("t", asynq.MaxRetry(5))
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		return s.rdb.ZAddXX(ctx, "asynq:{default}:lease", redis.Z{Score: float64(time.Now().Add(asynqLease).Unix()) + 0.000001, Member: "t"}).Err()
	})
	<-s.ended
	s.until("it is done", func() bool { return s.info("t") == nil })
	if n := s.ran("t"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}
