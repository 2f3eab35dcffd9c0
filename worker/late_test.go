package worker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// lateMark is a hook that holds up the first mark of a last attempt.
type lateMark struct {
	done atomic.Bool
	by   time.Duration
}

func (*lateMark) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*lateMark) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lateMark) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if key := argument(cmd); cmd.Name() == "set" && strings.HasPrefix(key, "hw:run:") && l.done.CompareAndSwap(false, true) {
			<-time.After(l.by)
		}
		return next(ctx, cmd)
	}
}

// "The start of a last attempt waits for the mark": its run finds it in Redis. A start that comes too late
// for that is decided anew, and no mark is left.
func TestLateMark(t *testing.T) {
	t.Parallel()
	const per = time.Second
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: per, Margin: per / 2}}, MiddlewareConfig{})
	s.rdb.AddHook(&lateMark{by: 30 * time.Millisecond})
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

// far is a hook that makes everything that is asked of Redis late, each way.
type far time.Duration

func (f far) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f far) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-time.After(time.Duration(f))
		defer func() { <-time.After(time.Duration(f)) }()
		return next(ctx, cmd)
	}
}

func (f far) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		<-time.After(time.Duration(f))
		defer func() { <-time.After(time.Duration(f)) }()
		return next(ctx, cmds)
	}
}

// decisions is a limiter's Observer that counts grants, and keeps each caller back for a while.
type decisions struct {
	late    time.Duration
	granted atomic.Int64
}

func (d *decisions) Decided(decided throttle.Decision, _ time.Duration, err error) {
	if err == nil && decided.Allowed {
		d.granted.Add(1)
	}
	<-time.After(d.late)
}

// observed has the system's limiter tell its decisions.
func (s *system) observed(rules []policy.Rule, o throttle.Observer) {
	s.t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
	must(s.t, err)
	if s.throttle.cfg.Limiter, err = throttle.New(s.rdb, policy, throttle.Config{Observer: o}); err != nil {
		s.t.Fatal(err)
	}
}

// "All of it holds with Redis 20 ms away as beside it", also for tasks on their last attempt:
// each starts when it is granted its start, and no limit is exceeded.
func TestLastAttemptsFarFromRedis(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			const tasks, limit, per = 40, 20, time.Second
			rules := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: per, Margin: per / 4}} // the handler may get its processor late
			s, o := newSystem(t, rules, MiddlewareConfig{}), &decisions{}
			s.observed(rules, o)
			for i := range tasks / 2 {
				s.add(queue.Task{ID: "own" + strconv.Itoa(i), MaxRetry: queue.Retries(0)})
				s.addForeign("foreign"+strconv.Itoa(i), asynq.MaxRetry(0))
			}
			s.rdb.AddHook(far(away))
			starts := make(chan time.Time, tasks)
			s.serve(asynq.Config{Concurrency: 8}, func(context.Context, *asynq.Task) error {
				starts <- time.Now()
				return nil
			})
			var at []time.Time
			for len(at) < tasks {
				select {
				case start := <-starts:
					at = append(at, start)
				case <-time.After(bound):
					t.Fatalf("%d of %d tasks started; %d starts were granted", len(at), tasks, o.granted.Load())
				}
			}
			slices.SortFunc(at, time.Time.Compare)
			for i := range at[limit:] {
				if within := at[i+limit].Sub(at[i]); within < per {
					t.Errorf("%d starts within %v; the limit is %d in %v", limit+1, within, limit, per)
				}
			}
			if n := o.granted.Load(); n > 3*tasks {
				t.Errorf("%d starts were granted for %d tasks", n, tasks)
			}
		})
	}
}

// "Where no limit binds, a busy machine costs nothing": a start that comes late, as where handlers
// fill the processors, is no reason to put its task back, to carry it over or to pick it up twice.
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
			s.observed(rules, &decisions{late: 20 * time.Millisecond})
			for i := range tasks / 2 {
				s.add(queue.Task{ID: "own" + strconv.Itoa(i), MaxRetry: queue.Retries(0)})
				s.addForeign("foreign"+strconv.Itoa(i), asynq.MaxRetry(0))
			}
			s.serve(asynq.Config{Concurrency: 8}, nil)
			for n := range tasks {
				select {
				case <-s.ended:
				case <-time.After(bound):
					t.Fatalf("%d of %d tasks ran; of the others asynq says: %v", n, tasks, s.notRun())
				}
			}
			s.until("all are done", func() bool { n, _ := s.counters(); return n >= tasks })
			if picked, back := s.seen.get(func(o *seen) int { return o.pickups }), s.seen.get(func(o *seen) int { return o.rescheduled }); picked != tasks || back != 0 {
				t.Errorf("%d tasks were picked up %d times and put back %d times", tasks, picked, back)
			}
		})
	}
}

// notRun is what asynq knows of the tasks of its default queue that have not run.
func (s *system) notRun() (all []string) {
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		s.inspector.ListPendingTasks, s.inspector.ListActiveTasks, s.inspector.ListScheduledTasks, s.inspector.ListRetryTasks, s.inspector.ListArchivedTasks,
	} {
		infos, err := list("default", asynq.PageSize(1000))
		if err != nil {
			all = append(all, err.Error())
		}
		for _, info := range infos {
			if s.ran(info.ID) == 0 {
				all = append(all, fmt.Sprintf("%s is %s, next at %v, orphaned %t, failed by %q", info.ID, info.State, info.NextProcessAt, info.IsOrphaned, info.LastErr))
			}
		}
	}
	return all
}

func argument(cmd redis.Cmder) string {
	if len(cmd.Args()) < 2 {
		return ""
	}
	text, _ := cmd.Args()[1].(string)
	return text
}
