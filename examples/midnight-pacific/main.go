// My vendor's quota resets at midnight Pacific: so many calls a day, by the calendar of
// Los Angeles, whatever clock this machine has, and right on the days of 23 and 25 hours.
//
//	go run ./examples/midnight-pacific
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
      - {name: daily, algorithm: calendar, limit: 3, resets: "0 0 * * *", timezone: America/Los_Angeles}
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

// run calls until the day's quota is used up, and prints when it comes back. Tasks would wait until then by themselves.
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
	for call := 1; ; call++ {
		d, err := limiter.Allow(ctx, "maps")
		if err != nil {
			return err
		}
		if !d.Allowed {
			fmt.Fprintf(out, "call %d is denied; the quota resets at %s UTC\n", call, d.At.Add(d.RetryAfter).UTC().Format("2006-01-02 15:04"))
			return nil
		}
		fmt.Fprintf(out, "call %d, %d left today\n", call, d.Rules[0].Remaining)
	}
}
