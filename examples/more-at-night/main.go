// My vendor allows more at night: ten calls a second on weekdays from eight to eight in New York, and fifty at all other times.
//
//	go run ./examples/more-at-night
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

const limits = `
limits:
  maps:
    rules:
      - {name: day, algorithm: token-bucket, limit: 10, per: 1s, burst: 10, active: "* 8-19 * * 1-5", timezone: America/New_York}
      - {name: night, algorithm: token-bucket, limit: 50, per: 1s, burst: 50, active: "* 0-7,20-23 * * 1-5", timezone: America/New_York}
      - {name: weekend, algorithm: token-bucket, limit: 50, per: 1s, burst: 50, active: "* * * * 0,6", timezone: America/New_York}
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

// run makes a call, and prints the rule that decided, and when each rule begins or ends to apply.
func run(ctx context.Context, out io.Writer, addr string) error {
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
	d, err := limiter.Allow(ctx, "maps")
	if err != nil {
		return err
	}
	for _, r := range d.Rules {
		fmt.Fprintf(out, "one call by %s, %d of %d left\n", r.Rule, r.Remaining, r.Limit)
	}
	rules, err := limiter.Hours("maps")
	if err != nil {
		return err
	}
	for _, r := range rules {
		is := "is off"
		if r.Holds {
			is = "holds"
		}
		fmt.Fprintf(out, "%s %s until %s\n", r.Rule.Name, is, r.Changes.UTC().Format("Monday 15:04 UTC"))
	}
	return nil
}
