// Plans of customers from the program's own database, and a change by hand while a task waits.
//
//	go run ./examples/tiers
//
// The table customers stands in for Postgres or SQLite: tierOf is what you write, whatever your driver is.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
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
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
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

// tierOf returns the plan that the database has for a customer, api/acme. Headway remembers it, and what it was if the database fails.
func tierOf(db *sql.DB) policy.TierOf {
	return func(ctx context.Context, name policy.Scope) (tier string, err error) {
		customer := name.Names()[1]
		err = db.QueryRowContext(ctx, "SELECT plan FROM customers WHERE id = $1", customer).Scan(&tier)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		return tier, err
	}
}

// run makes two calls for each customer. Those of acme, whose plan is gold, start at once. The second of bob would start in an hour, until
// bob is put into gold by hand.
func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	db := sql.OpenDB(customers{"acme": "gold", "bob": ""})
	defer db.Close()
	pol, err := limitsyaml.Parse("limits.yaml", limits)
	if err != nil {
		return err
	}
	throttled, err := worker.New(rdb, worker.Config{Limits: pol, NoMetrics: true, Throttle: throttle.Config{TierOf: tierOf(db)}})
	if err != nil {
		return err
	}
	started := make(chan string)
	srv := throttled.NewServer(asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel})
	err = srv.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		spec, _, err := queue.ReadSpec(task)
		started <- spec.Scope
		return err
	}))
	if err != nil {
		return err
	}
	defer srv.Shutdown()

	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: throttled.Limiter()})
	for _, customer := range []string{"bob", "acme", "bob", "acme"} {
		if _, err := tasks.Enqueue(ctx, queue.Task{Type: "call", Scope: queue.Scope("api", customer)}); err != nil {
			return err
		}
	}
	counts := map[string]int{}
	for range 3 {
		counts[<-started]++
	}
	fmt.Fprintf(out, "acme has the plan gold: %d of 2 calls; bob: %d of 2\n", counts["api/acme"], counts["api/bob"])

	// worker limits tier api/bob gold
	store := policystore.New(rdb, policystore.Config{})
	if _, err := store.SetTiers(ctx, policystore.Edit{By: "anna", Reason: "a gift"}, map[string]string{"api/bob": "gold"}); err != nil {
		return err
	}
	counts[<-started]++
	fmt.Fprintf(out, "bob is in gold too: %d of 2\n", counts["api/bob"])
	return nil
}
