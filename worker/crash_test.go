package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

var errCrashed, errDead = errors.New("it panicked"), errors.New("the process is dead")

// "Killed while it ran: it uses an attempt, as in asynq. After the last one it is archived": that holds until asynq has noted how the run
// ended. One that was put off has burned no attempt, and runs again.
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
			s.servedUntilKilled(func(context.Context, *asynq.Task) error {
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
			if tt.runs == 2 {
				s.gone("t")
			} else if why := s.archived("t"); why != "headway: a crash ended its last attempt of 1" {
				t.Errorf("it failed with %q", why)
			}
			if n := s.ran("t"); n != tt.runs {
				t.Errorf("it ran %d times, want %d", n, tt.runs)
			}
		})
	}
}

// killedBy has the process of a client die when it sends a command that is meant, before or when that has arrived: nothing of it reaches
// Redis from then on.
func killedBy(rdb *redis.Client, arrives bool, meant func(redis.Cmder) bool) *atomic.Bool {
	dead := new(atomic.Bool)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		kills := meant(cmd)
		if kills && !arrives {
			dead.Store(true)
		}
		if dead.Load() {
			return errDead
		}
		err := send()
		if kills && err == nil {
			dead.Store(true)
			return errDead
		}
		return err
	}))
	return dead
}

// servedUntilKilled serves with a process of its own that is killed when its first run has ended: whatever it would tell Redis of that
// run from then on does not get there.
func (s *system) servedUntilKilled(handler asynq.HandlerFunc) {
	s.t.Helper()
	rdb := s.server.Client(s.t)
	dead := killedBy(rdb, false, endsRun)
	limiter, err := throttle.New(rdb, s.throttle.cfg.Limiter.Policy(), throttle.Config{})
	must(s.t, err)
	limits, err := NewMiddleware(MiddlewareConfig{Redis: rdb, Limiter: limiter})
	must(s.t, err)
	server := limits.NewServer(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond})
	must(s.t, server.Start(s.counting(handler)))
	s.until("it has run one and is dead", dead.Load)
	server.Shutdown()
}

// "asynq's syncer sends them with a context that is over": a Redis that fails
// while a limited task is put back must not make it a failed one.
func TestDeadSyncer(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1})
	s.add(queue.Task{ID: "first", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	s.addForeign("last", asynq.MaxRetry(0))
	faults := s.failEnds(9)
	s.serve(asynq.Config{Concurrency: 1}, nil)
	s.haveEnded(4)
	s.until("all are done", func() bool { n, _ := s.counters(); return n == 4 })
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("asynq counts %d failures", failed)
	}
	if left := faults.Load(); left > 0 {
		t.Errorf("%d faults were left: the test tested nothing", left)
	}
}

// A crash leaves a held task active; asynq's recoverer brings it back a failure older, and it runs all the same, since it had not started.
func TestRecoveredBeforeItsStart(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
	s.abandon("t")
	s.serve(atOnce, func(ctx context.Context, _ *asynq.Task) error {
		if attempt, budget := Attempt(ctx); attempt != 1 || budget != 1 {
			t.Errorf("attempt %d of %d", attempt, budget)
		}
		return nil
	})
	<-s.ended
	s.gone("t")
	if n := s.ran("t"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// abandon leaves a pending task as a worker does that was killed: active, its lease long over.
func (s *system) abandon(id string) {
	s.t.Helper()
	for _, cmd := range [][]any{
		{"LREM", "asynq:{default}:pending", 1, id},
		{"HSET", "asynq:{default}:t:" + id, "state", "active"},
		{"LPUSH", "asynq:{default}:active", id},
		{"ZADD", "asynq:{default}:lease", 1, id},
	} {
		must(s.t, s.rdb.Do(s.t.Context(), cmd...).Err())
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
	for _, id := range []string{"own", "foreign", "last"} {
		if info := s.info(id); info == nil || info.State != asynq.TaskStateRetry || info.Retried != 0 {
			t.Errorf("%s is %+v after the shutdown", id, info)
		}
	}
	if n, failed := s.counters(); failed != 0 || n > 2 {
		t.Errorf("asynq counts %d processed, %d failed", n, failed)
	}
	d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
	if err != nil || d.Rules[0].ResetAfter > 16*time.Second {
		t.Errorf("units of tasks that never ran stay spent: %+v, %v", d, err)
	}
}

// "A limiter error: nothing lost": tasks wait while the limiter's Redis is away, and nobody's patience ends.
func TestLimiterIsAway(t *testing.T) {
	t.Parallel()
	away := redistest.NewServer(t)
	rules := perHour(100)
	rules[0].MaxWait = short
	s, began := newSystem(t, rules, MiddlewareConfig{OnMaxWait: Fail()}), time.Now()
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
	s.until("both were put back, and have waited for long", func() bool {
		return s.seen.get(func(o *seen) int { return o.rescheduled }) >= 2 && time.Since(began) > 3*short
	})
	if s.ran("own")+s.ran("foreign") != 0 {
		t.Fatal("a task ran while nothing could be decided")
	}
	away.Restart(t)
	s.haveEnded(2)
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
		s.rdb.Del(ctx, "hw:{p}:r::r")
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	if err := <-cause; !errors.Is(err, throttle.ErrLeaseLost) {
		t.Errorf("the run ended by %v", err)
	}
}

// "The start of a last attempt waits for the mark": its run finds it in Redis. A start that comes too late
// for that is decided anew, and no mark is left.
func TestLateMark(t *testing.T) {
	t.Parallel()
	const per = time.Second
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: per, Margin: per / 2}}, MiddlewareConfig{})
	var held atomic.Bool
	s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if cmd.Name() == "set" && strings.HasPrefix(fmt.Sprint(cmd.Args()[1]), "hw:run:") && held.CompareAndSwap(false, true) {
			<-time.After(30 * time.Millisecond)
		}
		return send()
	}))
	starts, ids := make(chan time.Time, 2), []string{"first", "second"}
	for _, id := range ids {
		s.add(queue.Task{ID: id, MaxRetry: queue.Retries(0)})
	}
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		starts <- time.Now()
		if id, _ := asynq.GetTaskID(ctx); s.rdb.Exists(ctx, "hw:run:{default}:"+id).Val() != 1 {
			t.Errorf("%s runs without its mark", id)
		}
		return nil
	})
	if apart := (<-starts).Sub(<-starts).Abs(); apart < per {
		t.Errorf("two starts within %v; the limit is one in %v", apart, per)
	}
	for _, id := range ids {
		s.until(id+" is done", func() bool { return s.info(id) == nil })
		// A round trip after asynq has forgotten the task.
		s.until("the mark of "+id+" is gone", func() bool { return s.rdb.Exists(t.Context(), "hw:run:{default}:"+id).Val() == 0 })
	}
}

// late is a limiter's Observer that keeps each caller back for a while.
type late struct {
	throttle.NoObserver
	by time.Duration
}

func (l late) Decided(context.Context, throttle.Decision, time.Duration, error) { <-time.After(l.by) }

// "Where no limit binds, a busy machine costs nothing": a start that comes late, as where handlers
// fill the processors, is no reason to put its task back or to pick it up twice.
func TestLateIsNotPutBack(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"sliding window": {Name: "r", Algorithm: policy.SlidingWindow, Limit: 1_000_000, Per: time.Second},
		"token bucket":   {Name: "r", Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: time.Second},
		"concurrency":    {Name: "r", Algorithm: policy.Concurrency, Limit: 1_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tasks = 300
			rules := []policy.Rule{rule}
			// Without tenants no slot is lent: on such a machine a run may last so long.
			s := newSystem(t, rules, MiddlewareConfig{Tenant: func(string) string { return "" }})
			limiter, err := throttle.New(s.rdb, policyOfP(t, rules), throttle.Config{Observer: late{by: 20 * time.Millisecond}})
			must(t, err)
			s.throttle.cfg.Limiter = limiter
			for i := range tasks / 2 {
				s.add(queue.Task{ID: "own" + strconv.Itoa(i), MaxRetry: queue.Retries(0)})
				s.addForeign("foreign"+strconv.Itoa(i), asynq.MaxRetry(0))
			}
			s.serve(asynq.Config{Concurrency: 8}, nil)
			s.until("all are done", func() bool { n, _ := s.counters(); return n >= tasks })
			if picked, back := s.seen.get(func(o *seen) int { return o.pickups }), s.seen.get(func(o *seen) int { return o.rescheduled }); picked != tasks || back != 0 {
				t.Errorf("%d tasks were picked up %d times and put back %d times", tasks, picked, back)
			}
		})
	}
}

// A start that was in time when the limiter checked it, and passes before the handler is called, is decided again in its place: of a
// task that starts at once, and of one that dispatch has granted its start.
func TestStoppedBeforeItsRun(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{
		{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Minute},
		{Name: "places", Algorithm: policy.Concurrency, Limit: 2, Lease: time.Hour},
	}
	for name, tasks := range map[string]int{"at once": 1, "dispatched": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, rules, func(s *system) {
				var leases atomic.Int64
				s.seen.onLease = func() {
					if int(leases.Add(1)) == tasks {
						<-time.After(10 * time.Millisecond)
					}
				}
				for i := range tasks {
					s.add(queue.Task{ID: "t" + strconv.Itoa(i), MaxRetry: queue.Retries(0)})
				}
				s.serve(asynq.Config{}, nil)
				s.finish(tasks)
				if began, late := s.seen.get(func(o *seen) int { return o.began }), s.seen.latest; began != tasks || late > 3*time.Millisecond || int(leases.Load()) != tasks+1 {
					t.Errorf("%d runs of %d tasks with %d leases, the latest %s late", began, tasks, leases.Load(), late)
				}
				if picked, faults := s.seen.get(func(o *seen) int { return o.pickups }), s.seen.faults; picked != 2*tasks-1 || len(faults) > 0 {
					t.Errorf("%d pick-ups of %d tasks, faults %q", picked, tasks, faults)
				}
				d, err := s.throttle.cfg.Limiter.Peek(s.t.Context(), throttle.Request{Scope: "p/a"})
				if err != nil || d.Rules[0].Remaining != 0 || d.Rules[1].Remaining != 2 {
					t.Errorf("%+v, %v: no place is left taken", d, err)
				}
			})
		})
	}
}
