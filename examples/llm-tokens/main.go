// Tokens per minute: an API allows so many requests and so many tokens, and how many tokens
// an answer takes is only known when its stream ends. Each task says the most that it may
// take, and settles what it took: the rest comes back at once, for the next one.
//
//	go run ./examples/llm-tokens
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

const limitsYAML = `
limits:
  llm:
    rules:
      - {name: calls, algorithm: sliding-window, limit: 60, per: 1m}
      - {name: tokens, algorithm: sliding-window, limit: 3000, per: 1m, unit: tokens}
`

func main() {
	// An in-process Redis, so that the example needs none; use your own.
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// fakeAPI streams words and says at the end how many tokens they were, as OpenAI does.
func fakeAPI() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			fmt.Fprintf(w, "data: %s\n\n", `{"choices": [{"delta": {"content": "some words"}}], "usage": null}`)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // as all of net/http's
		}
		fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", `{"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}}`)
	}))
}

// complete reads an answer and settles what it took.
func complete(ctx context.Context, url string) (throttle.Settlement, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return throttle.Settlement{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return throttle.Settlement{}, err
	}
	defer resp.Body.Close()
	costs, known := llm.Costs(resp) // or a Meter, while the words are used
	if !known {
		return throttle.Settlement{}, nil // it stays as it was estimated
	}
	return worker.Settle(ctx, costs)
}

func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	pol, err := limitsyaml.Parse("limits.yaml", []byte(limitsYAML))
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, pol, throttle.Config{})
	if err != nil {
		return err
	}
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter})
	if err != nil {
		return err
	}
	api := fakeAPI()
	defer api.Close()

	// Ten tasks that may take 900 tokens each would take four minutes. They take 150.
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for i := range 10 {
		task := queue.Task{Type: "complete", ID: fmt.Sprint("task-", i), Scope: "llm", Costs: policy.Costs{"requests": 1, "tokens": 900}}
		if _, err := client.Enqueue(ctx, task); err != nil {
			return err
		}
	}
	ended := make(chan throttle.Settlement)
	srv := limits.NewServer(asynq.Config{Concurrency: 8, LogLevel: asynq.FatalLevel})
	began := time.Now()
	if err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		settled, err := complete(ctx, api.URL)
		ended <- settled
		return err
	})); err != nil {
		return err
	}
	defer srv.Shutdown()
	back := int64(0)
	for range 10 {
		settled := <-ended
		for _, rule := range settled.Rules {
			back += rule.Back
		}
	}
	fmt.Fprintf(out, "10 answers, 9000 tokens reserved, %d came back; within a minute: %t\n", back, time.Since(began) < time.Minute)
	return nil
}
