// Fair shares of one quota: a big customer's backlog starves no other, one that pays for
// more gets more, and people who wait for an answer go before a customer's own batch.
//
//	go run ./examples/fair-shares
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log"
	"os"

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

// backlogs are what is enqueued, in this order: the big customer was first.
var backlogs = []struct {
	scope string
	tasks int
}{
	{"llm/big", 60},
	{"llm/small/batch", 8},
	{"llm/small/interactive", 8},
	{"llm/gold", 90},
}

// run has four scopes wait for one quota and prints when each was done.
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

	// With the limiter at hand, the client gives tasks their places in line.
	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	left, all := map[string]int{}, []queue.Task{}
	for _, b := range backlogs {
		left[b.scope] = b.tasks
		for range b.tasks {
			all = append(all, queue.Task{Type: "llm:ask", Scope: b.scope})
		}
	}
	if _, err := tasks.EnqueueBatch(ctx, queue.Number(func(yield func(queue.Task) bool) {
		for _, task := range all {
			if !yield(task) {
				return
			}
		}
	}), nil); err != nil {
		return err
	}

	asked := make(chan string)
	srv := throttled.NewServer(asynq.Config{Concurrency: 8, LogLevel: asynq.ErrorLevel})
	err = srv.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		spec, _, err := queue.ReadSpec(task)
		asked <- spec.Scope
		return err
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()

	for started := 1; started <= len(all); started++ {
		scope := <-asked
		if left[scope]--; left[scope] == 0 {
			fmt.Fprintf(out, "%s is done, as number %d of all\n", scope, started)
		}
	}
	return nil
}
