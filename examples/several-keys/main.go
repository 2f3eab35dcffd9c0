// Several keys of one API as one pool: each task starts when one of the keys has room, and its handler makes the call with that key. So
// does code that is no task.
//
//	go run ./examples/several-keys
package main

import (
	"context"
	_ "embed"
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

//go:embed limits.yaml
var limits []byte

// keys are the secrets of the members of limits.yaml. Yours come from a vault or the environment: limits.yaml, Redis and tasks have the
// aliases alone.
var keys = map[string]string{"alice": "key-of-alice", "bob": "key-of-bob", "ci": "key-of-ci"}

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

// api is an API that knows its keys, and counts the calls of each, by their header; those with an unknown key under "Bearer ".
type api map[string]*atomic.Int64

func (a api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	calls, known := a[r.Header.Get("Authorization")]
	if !known {
		calls = a["Bearer "]
		w.WriteHeader(http.StatusUnauthorized)
	}
	calls.Add(1)
}

// call calls the API with the key of a member.
func call(ctx context.Context, url, member string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+keys[member])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return resp, resp.Body.Close()
}

// handler calls the API with the key of the member that its task was granted. What the API answers counts for that key alone.
func handler(url string) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		resp, err := call(ctx, url, worker.Member(ctx))
		if err != nil {
			return err
		}
		return worker.ReportResponse(ctx, resp).Err()
	}
}

// callOnce is for code that is no task: it waits until one of the keys has room.
func callOnce(ctx context.Context, limiter *throttle.Limiter, url string) error {
	d, err := limiter.Wait(ctx, throttle.Request{Scope: "github/web"})
	if err != nil {
		return err
	}
	resp, err := call(ctx, url, d.Member)
	if err != nil {
		return err
	}
	scope := d.Grant.AnswerScope() // of the key alone
	_, err = limiter.Report(ctx, scope, limiter.ReadResponse(scope, resp, time.Now()))
	return err
}

func run(ctx context.Context, out io.Writer, addr string) error {
	fake := api{"Bearer ": {}}
	for _, key := range keys {
		fake["Bearer "+key] = &atomic.Int64{}
	}
	server := httptest.NewServer(fake)
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := limitsyaml.Parse("limits.yaml", limits)
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
	const n = 40 // twice what the keys allow together in a second
	for i := range n {
		if _, err := tasks.Enqueue(ctx, queue.Task{Type: "fetch", Scope: []string{"github/acme", "github/globex"}[i%2]}); err != nil {
			return err
		}
	}
	done := make(chan error)
	fetch := handler(server.URL)
	srv := throttled.NewServer(asynq.Config{Concurrency: 20, LogLevel: asynq.ErrorLevel})
	err = srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := fetch(ctx, task)
		done <- err
		return err
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	for range n {
		if err := <-done; err != nil {
			return err
		}
	}
	if err := callOnce(ctx, limiter, server.URL); err != nil {
		return err
	}

	for _, alias := range []string{"alice", "bob", "ci", ""} {
		fmt.Fprintf(out, "%d calls with %q\n", fake["Bearer "+keys[alias]].Load(), alias)
	}
	return nil
}
