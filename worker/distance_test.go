package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// away is a hook that makes all that is asked of Redis late, each way, by about so much.
type away time.Duration

func (a away) wait() {
	d := time.Duration(a)
	<-time.After(d - d/4 + rand.N(d/2+1))
}

func (a away) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a away) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.wait()
		defer a.wait()
		return next(ctx, cmd)
	}
}

func (a away) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		a.wait()
		defer a.wait()
		return next(ctx, cmds)
	}
}

// farRun is how tasks start whose worker is so far from Redis.
type farRun struct {
	starts  []time.Time
	pickups int
}

// runFar plans tasks under rules, and has a worker run them that is away.
func runFar(t *testing.T, distance time.Duration, rules []policy.Rule, tasks, concurrency int) farRun {
	t.Helper()
	server, near := redistest.Miniredis(t)
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
	if err != nil {
		t.Fatal(err)
	}
	planner, err := throttle.New(near, policy, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client := queue.NewClient(near, queue.ClientConfig{Limiter: planner})
	_, err = client.EnqueueBatch(t.Context(), func(yield func(queue.Entry) bool) {
		for i := range tasks {
			if !yield(queue.Entry{Task: queue.Task{Type: "work", Scope: "p", ID: fmt.Sprint(i)}}) {
				return
			}
		}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	far := redis.NewClient(redistest.MiniredisOptions(server))
	t.Cleanup(func() { _ = far.Close() })
	far.AddHook(away(distance))
	limiter, err := throttle.New(far, policy, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := &seen{}
	limits, err := NewMiddleware(MiddlewareConfig{Redis: far, Limiter: limiter, Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	s := limits.NewServer(asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
	var mu sync.Mutex
	var out farRun
	done := make(chan struct{})
	if err := s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		if out.starts = append(out.starts, time.Now()); len(out.starts) == tasks {
			close(done)
		}
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(time.Hour):
		t.Errorf("%d of %d tasks started in an hour", len(out.starts), tasks)
	}
	s.Shutdown()
	<-time.After(10 * time.Second) // what was announced at the end has been
	slices.SortFunc(out.starts, time.Time.Compare)
	out.pickups = o.get(func(o *seen) int { return o.pickups })
	return out
}

// "All of it holds with Redis 20 ms away as beside it": of what is waited for nothing stays unused, each task is picked up
// once, and no limit is exceeded; whatever the distance, with jitter of a quarter.
func TestDistanceIsHidden(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		distance time.Duration
		limit    int
	}{
		{time.Millisecond, 50}, {5 * time.Millisecond, 50}, {20 * time.Millisecond, 50}, {50 * time.Millisecond, 50}, {20 * time.Millisecond, 200},
	} {
		t.Run(fmt.Sprint(test.limit, " a second, ", test.distance, " each way"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limit, tasks := test.limit, 14*test.limit
				got := runFar(t, test.distance, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: int64(limit), Per: time.Second}}, tasks, 300)
				for i := range got.starts[limit:] {
					if within := got.starts[i+limit].Sub(got.starts[i]); within < time.Second {
						t.Fatalf("%d starts within %v", limit+1, within)
					}
				}
				// The first windows are those of a process that has measured little yet.
				from := 5 * limit
				windows := (tasks - 1 - from) / limit
				took := got.starts[from+windows*limit].Sub(got.starts[from])
				if used := 100 * windows * int(time.Second) / int(took); used < 97 {
					t.Errorf("%d %% of the limit was used", used)
				}
				if most := tasks*21/20 + limit; got.pickups > most { // the first window's stand in pending, and are late for their starts
					t.Errorf("%d tasks were picked up %d times", tasks, got.pickups)
				}
			})
		})
	}
}
