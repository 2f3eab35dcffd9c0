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

// A limiter tells its recorder what it grants.
func ExampleRecorder_Record() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	recorder, err := usage.New(rdb, usage.Config{Prefix: "example-record", App: "crawler"})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttle.New(rdb, policy.PerHour("search", 2), throttle.Config{Prefix: "example-record", OnSpent: recorder.Record})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 { // two are allowed
		if _, err := limiter.Allow(ctx, "search/acme"); err != nil {
			log.Fatal(err)
		}
	}
	if err := recorder.Flush(ctx); err != nil { // Run does it every ten seconds
		log.Fatal(err)
	}
	report, err := usage.Read(ctx, rdb, usage.Config{Prefix: "example-record"}, "search", time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range report.Spenders {
		fmt.Println(s.App, "spent", s.Units)
	}
	// Output:
	// crawler spent 2
}

// A program that names types says itself what it was granted.
func ExampleRecorder_Spent() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	limiter, err := throttle.New(rdb, policy.PerHour("search", 2), throttle.Config{Prefix: "example-spent"})
	if err != nil {
		log.Fatal(err)
	}
	recorder, err := usage.New(rdb, usage.Config{Prefix: "example-spent", App: "crawler"})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		d, err := limiter.Allow(ctx, "search/acme")
		if err != nil {
			log.Fatal(err)
		}
		if d.Allowed {
			recorder.Spent("search/acme", usage.By{Type: "page"}, 1)
		}
	}
	if err := recorder.Flush(ctx); err != nil { // Run does it every ten seconds
		log.Fatal(err)
	}

	report, err := usage.Read(ctx, rdb, usage.Config{Prefix: "example-spent"}, "search", time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range report.Spenders {
		fmt.Println(s.App, s.Type, "spent", s.Units)
	}
	// Output:
	// crawler page spent 2
}

// Whoever can read the keys can ask who spent from a scope, and from all below it.
func ExampleRead() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	for app, units := range map[string]int64{"billing": 5, "refunds": 2} {
		recorder, err := usage.New(rdb, usage.Config{Prefix: "example-read", App: app})
		if err != nil {
			log.Fatal(err)
		}
		recorder.Spent("payments/acme", usage.By{Queue: "default", Type: "charge"}, units)
		if err := recorder.Flush(ctx); err != nil {
			log.Fatal(err)
		}
	}

	report, err := usage.Read(ctx, rdb, usage.Config{Prefix: "example-read"}, "payments", time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("in all", report.All.Units)
	for _, s := range report.Spenders { // most units first
		fmt.Println(s.App, s.Queue, s.Type, s.Units)
	}
	// Output:
	// in all 7
	// billing default charge 5
	// refunds default charge 2
}
