package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

var errCrashed = errors.New("it panicked")

// dies is a hook of a process that is killed when its first run has ended: whatever it would
// tell Redis of that run from then on does not get there.
type dies struct{ dead atomic.Bool }

func (*dies) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*dies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *dies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if keys := scriptKeys(cmd); asynqx.EndsRun(withDeadline(ctx), keys) && isEnd(keys) {
			d.dead.Store(true)
		}
		if d.dead.Load() {
			err := errors.New("the process is dead")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// "Killed while it ran: it uses an attempt, as in asynq. After the last one it is archived":
// that holds until asynq has noted how the run ended. One that was put off has burned no
// attempt, and runs again.
func TestKilledAfterItsRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ends error
		runs int
	}{
		"succeeded": {nil, 1},
		"failed":    {errors.New("refused"), 1},
		"panicked":  {errCrashed, 1},
		"put off":   {busy{wait: time.Millisecond, known: true}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, perHour(100), MiddlewareConfig{})
			s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
			s.servedBy(&dies{}, func(context.Context, *asynq.Task) error {
				if errors.Is(tt.ends, errCrashed) {
					panic(tt.ends)
				}
				return tt.ends
			})
			if info := s.info("t"); info == nil || info.State != asynq.TaskStateActive {
				t.Fatalf("the process is dead, and what it ran is %+v", info)
			}
			// Its lease is long over, as asynq sees it, and the next worker looks for such tasks.
			must(t, s.rdb.ZAdd(t.Context(), "asynq:{default}:lease", redis.Z{Score: 1, Member: "t"}).Err())
			s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, nil)
			s.until("its end is known", func() bool {
				info := s.info("t")
				return info == nil || info.State == asynq.TaskStateArchived
			})
			if n := s.ran("t"); n != tt.runs {
				t.Errorf("it ran %d times, want %d", n, tt.runs)
			}
			if info := s.info("t"); (info == nil) != (tt.runs == 2) || info != nil && info.LastErr != "headway: a crash ended its last attempt of 1" {
				t.Errorf("it is %+v", info)
			}
		})
	}
}

// servedBy serves with a process of its own until that has run a task and is dead.
func (s *system) servedBy(hook *dies, handler asynq.HandlerFunc) {
	s.t.Helper()
	rdb := s.server.Client(s.t)
	rdb.AddHook(hook)
	limiter, err := throttle.New(rdb, s.throttle.cfg.Limiter.Policy(), throttle.Config{})
	must(s.t, err)
	limits, err := NewMiddleware(MiddlewareConfig{Redis: rdb, Limiter: limiter})
	must(s.t, err)
	server := limits.NewServer(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond})
	must(s.t, server.Start(s.counting(handler)))
	s.until("it has run one and is dead", hook.dead.Load)
	server.Shutdown()
}

// The mark of a last attempt is gone when asynq has noted how it ended, whatever that was.
func TestNoMarkIsLeft(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	ids := []string{"succeeds", "fails", "is kept", "panics"}
	for _, id := range ids {
		task := queue.Task{ID: id, MaxRetry: queue.Retries(0)}
		if id == "is kept" {
			task.Remember = time.Hour
		}
		s.add(task)
	}
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		switch id, _ := asynq.GetTaskID(ctx); id {
		case "fails":
			return errors.New("refused")
		case "panics":
			panic("boom")
		}
		return nil
	})
	for range ids {
		<-s.ended
	}
	s.until("no mark is left", func() bool { return len(s.rdb.Keys(t.Context(), "hw:run:*").Val()) == 0 })
}
