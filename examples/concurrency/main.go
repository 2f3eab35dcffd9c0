// Concurrency around a scarce resource: a database that bears two reports at once, however many workers there are. A place is
// freed when its run ends, and within the lease when its worker dies.
//
//	go run ./examples/concurrency
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func main() {
	server := miniredis.NewMiniRedis() // in process, so that the example needs no Redis
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	work := func(ctx context.Context) error { return report(ctx, 100*time.Millisecond) }
	if err := run(context.Background(), os.Stdout, server.Addr(), work); err != nil {
		log.Fatal(err)
	}
}

// report stands for a query that takes d; it heeds ctx, as what holds a lease must.
func report(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // throttle.ErrLeaseLost when the place is gone
	}
}

// run makes six reports at once and prints how many ran side by side at most.
func run(ctx context.Context, out io.Writer, addr string, report func(context.Context) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"warehouse": {Rules: []policy.Rule{{Name: "reports", Algorithm: policy.Concurrency, Limit: 2, Lease: 10 * time.Second}}},
	})
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		return err
	}
	var running, most atomic.Int64
	one := func() error {
		d, err := limiter.Wait(ctx, throttle.Request{Scope: "warehouse"})
		if err != nil {
			return err
		}
		held, lease := limiter.Lease(ctx, d.Grant)
		defer lease.Release(ctx) //nolint:errcheck // the place is free when the lease ends
		for n, seen := running.Add(1), most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		defer running.Add(-1)
		return report(held)
	}
	errs := make(chan error)
	for range 6 {
		go func() { errs <- one() }()
	}
	for range 6 {
		if err := <-errs; err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "6 reports, at most %d at once\n", most.Load())
	return nil
}
