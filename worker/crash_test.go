package worker

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
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

// failing is a hook that fails the scripts that end a run, for as long as it is told.
type failing struct{ left atomic.Int64 }

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if keys := scriptKeys(cmd); asynqx.EndsRun(withDeadline(ctx), keys) && keys[0][:6] == "asynq:" && isEnd(keys) && f.left.Add(-1) >= 0 {
			err := &net.OpError{Op: "read", Err: errors.New("connection reset")}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// isEnd tells retry, done, complete, archive and requeue from dequeue, which
// names the paused list.
func isEnd(keys []string) bool {
	for _, key := range keys {
		if len(key) > 7 && key[len(key)-7:] == ":paused" {
			return false
		}
	}
	return true
}

func withDeadline(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	cancel()
	return ctx
}

func scriptKeys(cmd redis.Cmder) (keys []string) {
	args := cmd.Args()
	if name, _ := args[0].(string); name != "evalsha" && name != "eval" || len(args) < 4 {
		return nil
	}
	n, _ := args[2].(int)
	for _, key := range args[3 : 3+n] {
		keys = append(keys, key.(string))
	}
	return keys
}

// "asynq's syncer sends them with a context that is over": a Redis that fails
// while a limited task is put back must not make it a failed one.
func TestDeadSyncer(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1})
	fault := &failing{}
	s.rdb.AddHook(fault)
	s.add(queue.Task{ID: "first", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	fault.left.Store(9)
	s.serve(asynq.Config{Concurrency: 1}, nil)
	for range 3 {
		<-s.ended
	}
	s.until("all are done", func() bool { n, _ := s.counters(); return n == 3 })
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("asynq counts %d failures", failed)
	}
	if left := fault.left.Load(); left > 0 {
		t.Errorf("%d faults were left: the test tested nothing", left)
	}
}

// "A task killed before its start runs again at any max retry; one killed while
// running uses an attempt, as in asynq."
func TestKilled(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	ctx := t.Context()
	must(t, s.rdb.Set(ctx, "hw:run:{default}:in its last attempt", 1, time.Minute).Err())
	j := func(id string) *job { return &job{id: id, queue: "default", own: true, budget: 0, retried: 1} }
	if err := s.throttle.checkExpired(ctx, j("before its start")); err != nil {
		t.Errorf("killed before its start: %v", err)
	}
	if err := s.throttle.checkExpired(ctx, j("in its last attempt")); err == nil {
		t.Error("killed in its last attempt, it may run again")
	}
}

// The mark of a last attempt is there while it runs and gone after it.
func TestMarkOfLastAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
	during := make(chan int64, 1)
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		var marked int64
		for began := time.Now(); marked == 0 && time.Since(began) < bound; { // soon after its start
			marked = s.rdb.Exists(ctx, "hw:run:{default}:t").Val()
		}
		during <- marked
		return nil
	})
	if n := <-during; n != 1 {
		t.Error("no mark while it runs")
	}
	s.until("the mark is gone", func() bool { return s.rdb.Exists(t.Context(), "hw:run:{default}:t").Val() == 0 })
}

// A crash leaves a held task active; asynq's recoverer brings it back a failure
// older, and it runs all the same, since it had not started.
func TestRecoveredBeforeItsStart(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	ctx := t.Context()
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
	// What a worker that was killed leaves behind: the task active, its lease long over.
	for _, cmd := range [][]any{
		{"LMOVE", "asynq:{default}:pending", "asynq:{default}:active", "RIGHT", "LEFT"},
		{"HSET", "asynq:{default}:t:t", "state", "active"},
		{"ZADD", "asynq:{default}:lease", time.Now().Add(-time.Hour).Unix(), "t"},
	} {
		must(t, s.rdb.Do(ctx, cmd...).Err())
	}
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, nil)
	<-s.ended
	s.until("it is done", func() bool { return s.info("t") == nil })
	if n := s.ran("t"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// "Shutdown while holding: nothing lost": tasks that wait in handlers go back.
func TestShutdownWhileHolding(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 15 * time.Second}}
	s := newSystem(t, rules, MiddlewareConfig{Hold: throttle.MaxDelayLimit, MaxHolds: 3})
	s.add(queue.Task{ID: "runs"})
	server := s.serve(asynq.Config{}, nil)
	<-s.ended
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.addForeign("last", asynq.MaxRetry(0))
	s.until("three hold", func() bool { return s.seen.get(func(o *seen) int { return o.holding }) == 3 })
	server.Shutdown()
	for _, id := range []string{"own", "foreign"} {
		if info := s.info(id); info == nil || info.State != asynq.TaskStateRetry || info.Retried != 0 {
			t.Errorf("%s is %+v after the shutdown", id, info)
		}
	}
	if s.info("last") == nil && s.info(asynqx.CarrierType+":last") == nil {
		t.Error("the task on its last attempt is lost")
	}
	if n, failed := s.counters(); failed != 0 || n > 2 {
		t.Errorf("asynq counts %d processed, %d failed", n, failed)
	}
	d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
	if err != nil || d.Rules[0].ResetAfter > 16*time.Second {
		t.Errorf("units of tasks that never ran stay spent: %+v, %v", d, err)
	}
}

// "A limiter error: nothing lost": tasks wait while the limiter's Redis is away.
func TestLimiterIsAway(t *testing.T) {
	t.Parallel()
	away := redistest.NewServer(t)
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	policy := s.throttle.cfg.Limiter.Policy()
	rdb := redis.NewClient(&redis.Options{Addr: away.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter, err := throttle.New(rdb, policy, throttle.Config{Timeout: bound})
	must(t, err)
	s.throttle.cfg.Limiter = limiter
	away.Kill9()
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(0))
	s.serve(asynq.Config{}, nil)
	s.until("both were put back", func() bool { return s.seen.get(func(o *seen) int { return o.rescheduled }) >= 2 })
	if s.ran("own")+s.ran("foreign") != 0 {
		t.Fatal("a task ran while nothing could be decided")
	}
	away.Restart(t)
	<-s.ended
	<-s.ended
	s.until("both are done", func() bool { return s.info("own") == nil && s.info("foreign") == nil })
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("asynq counts %d failures", failed)
	}
}

// A lost lease cancels the run.
func TestLostLease(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Lease: time.Second}}, MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
	cause := make(chan error, 1)
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		s.rdb.Del(ctx, "hw:{p}:r:held")
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	if err := <-cause; !errors.Is(err, throttle.ErrLeaseLost) {
		t.Errorf("the run ended by %v", err)
	}
}
