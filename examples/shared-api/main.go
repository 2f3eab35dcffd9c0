// One upstream limit shared by tasks and by code that is no task: a web handler asks the same limiter and turns callers away,
// with the headers that tell them when to come back, while background tasks wait for what is left.
//
//	go run ./examples/shared-api
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

func main() {
	server := miniredis.NewMiniRedis() // in process, so that the example needs no Redis
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// quote answers with a price from the upstream API, or says when to come back.
func quote(limiter *throttle.Limiter, upstream func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := limiter.Allow(r.Context(), "prices")
		if err != nil {
			http.Error(w, "prices are not to be had right now", http.StatusServiceUnavailable)
			return
		}
		for name, values := range d.Header() {
			w.Header()[name] = values
		}
		if !d.Allowed {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		upstream()
		fmt.Fprintln(w, "42")
	}
}

func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"prices": {Rules: []policy.Rule{{Name: "plan", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Second}}},
	})
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		return err
	}
	var calls atomic.Int64
	upstream := func() { calls.Add(1) }

	// The web side takes what it gets.
	web := quote(limiter, upstream)
	for i := range 6 {
		answer := httptest.NewRecorder()
		web(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/quote", nil))
		fmt.Fprintf(out, "request %d: %d, retry after %q\n", i+1, answer.Code, answer.Header().Get("Retry-After"))
	}

	// The tasks wait for theirs.
	tasks := queue.NewClient(rdb, queue.ClientConfig{Policy: policy})
	for range 4 {
		if _, err := tasks.Enqueue(ctx, queue.Task{Type: "refresh", Scope: "prices"}); err != nil {
			return err
		}
	}
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter})
	if err != nil {
		return err
	}
	refreshed := make(chan struct{})
	srv := limits.NewServer(asynq.Config{Concurrency: 4, LogLevel: asynq.ErrorLevel})
	err = srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		upstream()
		refreshed <- struct{}{}
		return nil
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	for range 4 {
		<-refreshed
	}
	fmt.Fprintf(out, "%d calls to the upstream API\n", calls.Load())
	return nil
}
