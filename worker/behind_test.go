package worker

import (
	"context"
	"fmt"
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

// Where the workers' slots, and not the limits, hold a backlog back, each task is later than its limits admit it. The slots
// are used nevertheless, few tasks are picked up for nothing, and each is put back once or so.
func TestBehindTheLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			tasks, tenants = 900, 50
			workers, slots = 2, 3
			lasts          = 100 * time.Millisecond
		)
		server, near := redistest.Miniredis(t)
		t.Cleanup(func() { <-time.After(10 * time.Second) }) // what was announced at the end has been
		policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Rules:  []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Second}},
			Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 100, Per: time.Second}}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		planner, err := throttle.New(near, policy, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = queue.NewClient(near, queue.ClientConfig{Limiter: planner}).EnqueueBatch(t.Context(), func(yield func(queue.Entry) bool) {
			for i := range tasks {
				if !yield(queue.Entry{Task: queue.Task{Type: "work", Scope: fmt.Sprintf("p/t%02d", i%tenants), ID: fmt.Sprint(i)}}) {
					return
				}
			}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		o, done := &seen{}, make(chan struct{}, tasks)
		for range workers {
			far := redis.NewClient(redistest.MiniredisOptions(server))
			defer far.Close()
			far.AddHook(away(time.Millisecond))
			limiter, err := throttle.New(far, policy, throttle.Config{})
			if err != nil {
				t.Fatal(err)
			}
			limits, err := NewMiddleware(MiddlewareConfig{Redis: far, Limiter: limiter, Observer: o})
			if err != nil {
				t.Fatal(err)
			}
			s := limits.NewServer(asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel})
			if err := s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				<-time.After(lasts)
				done <- struct{}{}
				return nil
			})); err != nil {
				t.Fatal(err)
			}
			defer s.Shutdown()
		}
		began := time.Now()
		for range tasks {
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("a task has not run in a minute")
			}
		}
		best := lasts * tasks / (workers * slots)
		if took := time.Since(began); took > best*5/4 {
			t.Errorf("it took %s, and %s with all slots used", took, best)
		}
		if n := o.get(func(o *seen) int { return o.pickups }); n > tasks*13/10 {
			t.Errorf("%d tasks were picked up %d times", tasks, n)
		}
		if n := o.get(func(o *seen) int { return o.rescheduled }); n > tasks*5/4 {
			t.Errorf("%d tasks were put back %d times", tasks, n)
		}
	})
}
