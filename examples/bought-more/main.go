// One customer bought more: its limit is raised while its tasks wait, and they come at
// once. In a real system the last step is typed by a person:
//
//	worker limits set payments/acme tenant limit=100
//
//	go run ./examples/bought-more
package main

import (
	"context"
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
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
)

const limits = `
limits:
  payments:
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 2, per: 1s}
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

// run charges 40 times for acme, at 2 a second until it is allowed 100.
func run(ctx context.Context, out io.Writer, addr string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
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

	// The limits stand in Redis, and every process that follows them changes with them.
	store := policystore.New(rdb, policystore.Config{})
	if _, _, err := store.PublishFile(ctx, "the example", policy, false); err != nil {
		return err
	}
	go policystore.Follow(ctx, store, limiter, policystore.FollowConfig{})

	charged := make(chan struct{}, 40)
	srv := throttled.NewServer(asynq.Config{Concurrency: 8, LogLevel: asynq.ErrorLevel})
	err = srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		charged <- struct{}{}
		return nil
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for range 40 {
		if _, err := tasks.Enqueue(ctx, queue.Task{Type: "charge", Scope: "payments/acme"}); err != nil {
			return err
		}
	}

	began := time.Now()
	for range 4 {
		<-charged
	}
	fmt.Fprintf(out, "4 charges in %.1fs at 2 a second\n", time.Since(began).Seconds())
	made, err := store.Set(ctx, policystore.Edit{By: "sales"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "version %d: %s\n", made.Version.Number, made.Version.Change)
	began = time.Now()
	for range 36 {
		<-charged
	}
	fmt.Fprintf(out, "36 charges in %.1fs\n", time.Since(began).Seconds())
	return nil
}
