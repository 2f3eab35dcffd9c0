// A limit for each tenant, from a limits.yaml: tasks name the tenant in their
// scope, and no tenant's backlog slows another's tasks.
//
//	go run ./examples/per-tenant
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log"
	"os"
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

// run looks up 8 addresses for each of three tenants and prints when each tenant was done.
func run(ctx context.Context, out io.Writer, addr string) error {
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

	// With the policy at hand, the client refuses what could never run.
	tasks := queue.NewClient(rdb, queue.ClientConfig{Policy: policy})
	tenants := []string{"small", "other", "big"}
	for range 8 {
		for _, tenant := range tenants {
			if _, err := tasks.Enqueue(ctx, queue.Task{Type: "geo:lookup", Scope: queue.Scope("geo", tenant)}); err != nil {
				return err
			}
		}
	}

	looked := make(chan string)
	srv := throttled.NewServer(asynq.Config{Concurrency: 8, LogLevel: asynq.ErrorLevel})
	err = srv.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		spec, _, err := queue.ReadSpec(task)
		looked <- spec.Scope
		return err
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()

	began, left := time.Now(), map[string]int{}
	for range 8 * len(tenants) {
		scope := <-looked
		if left[scope]++; left[scope] == 8 {
			fmt.Fprintf(out, "%s is done after %.1fs\n", scope, time.Since(began).Seconds())
		}
	}
	return nil
}
