// Try a limit before it counts: a shadow rule decides and counts what it would have done, and stops no task.
//
//	go run ./examples/try-a-limit
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

const limits = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1m}
      - {name: trial, algorithm: sliding-window, limit: 5, per: 1m, shadow: true}
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

// run makes 20 calls, and prints how many of them a limit of five a minute would have held
// up. A worker shows it in its metrics, in its log and by worker inspect usage.
func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	if err != nil {
		return err
	}
	var answers sync.WaitGroup // which come in the background
	counted := make(chan throttle.Shadowed, 20)
	limiter, err := throttle.New(rdb, policy, throttle.Config{OnShadow: func(s throttle.Shadowed) {
		counted <- s
		answers.Done()
	}})
	if err != nil {
		return err
	}
	for range 20 {
		answers.Add(1)
		d, err := limiter.Allow(ctx, "payments")
		if err != nil || !d.Allowed {
			return fmt.Errorf("a call was not made: %+v, %w", d, err)
		}
	}
	answers.Wait()
	close(counted)
	waits := 0
	for s := range counted {
		if s.Outcome == throttle.ShadowDenied {
			waits++
		}
	}
	fmt.Fprintf(out, "20 calls were made; by the rule on trial %d would have waited\n", waits)
	return nil
}
