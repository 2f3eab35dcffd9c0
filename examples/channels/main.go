// Channels: calls that come through a channel, each made when the limits of its scope admit it.
//
//	go run ./examples/channels
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
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
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// work makes the calls of a channel of scopes, until it is closed or ctx ends, and returns when they have ended.
func work(ctx context.Context, limiter *throttle.Limiter, scopes <-chan string, call func(ctx context.Context, scope string)) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	for scope := range scopes {
		d, err := limiter.Wait(ctx, throttle.Request{Scope: scope})
		if err != nil {
			return err // ctx has ended, or the wait would be longer than a rule's max_wait
		}
		held, lease := limiter.Lease(ctx, d.Grant) // for concurrency rules
		calls.Go(func() {
			defer func() { _ = lease.Release(ctx) }() // else it expires
			call(held, scope)
		})
	}
	return nil
}

// run makes ten calls under a limit of five in half a second and two at once.
func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	rules, err := policy.New(policy.UnmatchedFail, map[string]policy.ScopeConfig{"payments": {Rules: []policy.Rule{
		{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: 500 * time.Millisecond},
		{Name: "at-once", Algorithm: policy.Concurrency, Limit: 2},
	}}})
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, rules, throttle.Config{})
	if err != nil {
		return err
	}
	scopes := make(chan string)
	go func() {
		defer close(scopes)
		for range 10 {
			scopes <- "payments/acme"
		}
	}()
	var mu sync.Mutex
	var starts []time.Time
	running, most := 0, 0
	err = work(ctx, limiter, scopes, func(context.Context, string) {
		mu.Lock()
		starts, running = append(starts, time.Now()), running+1
		most = max(most, running)
		mu.Unlock()
		<-time.After(20 * time.Millisecond) // the call
		mu.Lock()
		defer mu.Unlock()
		running--
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d calls, at most %d at once; the sixth came half a second after the first: %t\n",
		len(starts), most, starts[5].Sub(starts[0]) >= 500*time.Millisecond)
	return nil
}
