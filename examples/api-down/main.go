// An API that is down for less than a second, under a breaker: after its first failures it is left alone, single tasks try it again, and
// all are done when it is back. Those that wait meanwhile use up no attempt.
//
//	go run ./examples/api-down
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
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/worker"
)

const limits = `
limits:
  payments:
    breaker: {failures: 50%, of: 4, in: 5s, wait: 1s}
    rules:
      - {name: account, algorithm: sliding-window, limit: 100, per: 1s}
`

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

// api is an API that is down for a while from its first call on.
type api struct {
	back             atomic.Pointer[time.Time]
	answered, failed atomic.Int64
}

func (a *api) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	back := time.Now().Add(700 * time.Millisecond)
	a.back.CompareAndSwap(nil, &back)
	if time.Now().Before(*a.back.Load()) {
		a.failed.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	a.answered.Add(1)
}

// charge is a handler as it always was; ReportResponse says what the answer means.
func charge(url string) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		resp, err := http.Get(url) //nolint:noctx // kept short
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return worker.ReportResponse(ctx, resp).Err()
	}
}

func run(ctx context.Context, out io.Writer, addr string) error {
	fake := &api{}
	server := httptest.NewServer(fake)
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		return err
	}
	throttled, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter})
	if err != nil {
		return err
	}

	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	const n = 30
	for range n {
		if _, err := tasks.Enqueue(ctx, queue.Task{Type: "charge", Scope: "payments/acme"}); err != nil {
			return err
		}
	}
	done := make(chan struct{}, n)
	handler := charge(server.URL)
	srv := throttled.NewServer(asynq.Config{
		Concurrency: 4, LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	err = srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := handler(ctx, task)
		if err == nil {
			done <- struct{}{}
		}
		return err
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	for range n {
		<-done
	}
	fmt.Fprintf(out, "%d tasks done, %d calls failed while the API was down\n", fake.answered.Load(), fake.failed.Load())
	return nil
}
