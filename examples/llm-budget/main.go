// A monthly budget in money for a dear model and a cheap one: once the dear model has used up its 80 %, tasks get the cheap one, and each
// handler learns which model its task has. What a call costs is settled by the usage in its answer and by prices.
//
//	go run ./examples/llm-budget
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"

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

//go:embed limits.yaml
var limits []byte

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

// api answers as OpenAI does, and counts the calls of each model.
type api struct {
	mu    sync.Mutex
	calls map[string]int
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Model string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.calls[asked.Model]++
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"object": "chat.completion", "model": %q, "choices": [{"message": {"content": "some words"}}],
		"usage": {"prompt_tokens": 0, "completion_tokens": 10000, "total_tokens": 10000}}`, asked.Model)
}

// body asks the model that the task was granted.
func body(ctx context.Context, prompt string) string {
	return fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": %q}]}`, worker.Member(ctx), prompt)
}

// complete calls that model. The run is settled when the answer has been read.
func complete(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body(ctx, "some words")))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := worker.ReportResponse(ctx, resp).Err(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func run(ctx context.Context, out io.Writer, addr string) error {
	fake := &api{calls: map[string]int{}}
	server := httptest.NewServer(fake)
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	pol, err := limitsyaml.Parse("limits.yaml", limits)
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, pol, throttle.Config{})
	if err != nil {
		return err
	}
	prices, err := llm.NewPrices(map[string]llm.Price{"gpt-5.5": {"input": 1.25, "output": 10}, "gpt-5.5-mini": {"input": 0.25, "output": 2}})
	if err != nil {
		return err
	}
	throttled, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter, Prices: prices})
	if err != nil {
		return err
	}

	// Each task may cost ten cents, which 10,000 tokens of the dear model do.
	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	const n = 12
	for i := range n {
		task := queue.Task{Type: "complete", Scope: []string{"openai/acme", "openai/globex"}[i%2], Costs: policy.Costs{"requests": 1, "usd": 100000}}
		if _, err := tasks.Enqueue(ctx, task); err != nil {
			return err
		}
	}
	done := make(chan error)
	srv := throttled.NewServer(asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel})
	if err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		err := complete(ctx, server.URL)
		done <- err
		return err
	})); err != nil {
		return err
	}
	defer srv.Shutdown()
	for range n {
		if err := <-done; err != nil {
			return err
		}
	}

	now, err := limiter.Peek(ctx, throttle.Request{Scope: "openai/acme"})
	if err != nil {
		return err
	}
	month, _ := now.Rule("openai", "month")
	for _, model := range []string{"gpt-5.5", "gpt-5.5-mini"} {
		fmt.Fprintf(out, "%d calls of %s\n", fake.calls[model], model)
	}
	fmt.Fprintf(out, "%.2f dollars are left\n", float64(month.Remaining)/1e6)
	return nil
}
