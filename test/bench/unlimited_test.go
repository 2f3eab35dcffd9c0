package bench

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

// BenchmarkUnlimited runs tasks that no limit stands in the way of, with asynq
// alone and with Headway around the same handler: without a scope, and under a
// rule that is never reached. The figure is Headway's tasks a second by asynq's
// in the same run; the two take turns, and the median of the ratios counts.
func BenchmarkUnlimited(b *testing.B) {
	for name, scope := range map[string]string{"no scope": "", "one rule": "p/a", "three levels, four rules": "q/a/b"} {
		b.Run(name, func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				bare := drain(b, "", false)
				ours := drain(b, scope, true)
				ratios = append(ratios, ours/bare)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x-asynq")
		})
	}
}

const drained = 20_000

// drain returns how many tasks a second a server takes from a full queue.
func drain(b *testing.B, scope string, headway bool) float64 {
	b.Helper()
	server := redistest.NewServer(b)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 64})
	defer server.Kill9()
	defer rdb.Close()
	fill(b, rdb, scope)
	var done atomic.Int64
	all := make(chan struct{})
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if done.Add(1) == drained {
			close(all)
		}
		return nil
	})
	cfg := asynq.Config{Concurrency: 32, LogLevel: asynq.FatalLevel}
	began := time.Now()
	if headway {
		srv := throttled(b, rdb, cfg)
		if err := srv.Start(handler); err != nil {
			b.Fatal(err)
		}
		<-all
		took := time.Since(began)
		srv.Shutdown()
		return drained / took.Seconds()
	}
	srv := asynq.NewServerFromRedisClient(rdb, cfg)
	if err := srv.Start(handler); err != nil {
		b.Fatal(err)
	}
	<-all
	took := time.Since(began)
	srv.Shutdown()
	return drained / took.Seconds()
}

func throttled(b *testing.B, rdb redis.UniversalClient, cfg asynq.Config) *worker.Server {
	b.Helper()
	const many = 1_000_000
	policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{
		"p": {Rules: []throttle.Rule{{Name: "r", Algorithm: throttle.TokenBucket, Limit: many, Per: time.Second, Burst: many}}},
		"q": {
			Rules: []throttle.Rule{{Name: "account", Algorithm: throttle.SlidingWindow, Limit: many, Per: time.Second}},
			Scopes: map[string]throttle.Node{"*": {
				Rules: []throttle.Rule{
					{Name: "tenant", Algorithm: throttle.TokenBucket, Limit: many, Per: time.Second, Burst: many},
					{Name: "parallel", Algorithm: throttle.Concurrency, Limit: many},
				},
				Scopes: map[string]throttle.Node{"b": {Rules: []throttle.Rule{
					{Name: "endpoint", Algorithm: throttle.SlidingWindow, Limit: many, Per: time.Second},
				}}},
			}},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		b.Fatal(err)
	}
	t, err := worker.New(worker.Config{Redis: rdb, Limiter: limiter})
	if err != nil {
		b.Fatal(err)
	}
	return t.NewServer(cfg)
}

// fill enqueues with asynq alone, so that both find the same tasks.
func fill(b *testing.B, rdb redis.UniversalClient, scope string) {
	b.Helper()
	client := asynq.NewClientFromRedisClient(rdb)
	var headers map[string]string
	if scope != "" {
		headers = map[string]string{queue.HeaderScope: scope}
	}
	next := make(chan int)
	errs := make(chan error, 16)
	for range cap(errs) {
		go func() {
			for i := range next {
				task := asynq.NewTaskWithHeaders("work", nil, headers)
				if _, err := client.Enqueue(task, asynq.TaskID(fmt.Sprint(i))); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for i := range drained {
		next <- i
	}
	close(next)
	for range cap(errs) {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}
