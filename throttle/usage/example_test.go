package usage_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
)

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A limiter tells its recorder what it grants.
func ExampleRecorder_Record() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	recorder, err := usage.New(rdb, usage.Config{Prefix: "example-record", App: "crawler"})
	check(err)
	limiter, err := throttle.New(rdb, policy.PerHour("search", 2), throttle.Config{Prefix: "example-record", OnSpent: recorder.Record})
	check(err)
	for range 2 {
		d, err := limiter.Allow(ctx, "search/acme")
		check(err)
		if d.Allowed && d.Rules[0].Remaining == 0 { // the second is not needed
			check(limiter.Refund(ctx, d.Grant))
		}
	}
	check(recorder.Flush(ctx)) // Run does it every ten seconds
	report, err := usage.Read(ctx, rdb, usage.Config{Prefix: "example-record"}, "search", time.Hour)
	check(err)
	for _, s := range report.Spenders {
		fmt.Println(s.App, "spent", s.Units)
	}
	// Output:
	// crawler spent 1
}
