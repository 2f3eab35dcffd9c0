package usage_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/usage"
)

// A program that asks a limiter by itself says what it was granted.
func ExampleRecorder_Spent() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6390"})
	policy, err := limitsyaml.Load("limits.yaml")
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		log.Fatal(err)
	}
	recorder, err := usage.New(rdb, usage.Config{App: "crawler"})
	if err != nil {
		log.Fatal(err)
	}
	go recorder.Run(ctx)
	if d, err := limiter.Allow(ctx, "payments/acme"); err == nil && d.Allowed {
		recorder.Spent("payments/acme", usage.By{Type: "page"}, 1)
	}
}

// Whoever can read the keys can ask.
func ExampleRead() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6390"})
	report, err := usage.Read(context.Background(), rdb, usage.Config{}, "payments", time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range report.Spenders {
		fmt.Println(s.App, s.Queue, s.Type, s.Units, s.Tasks, s.Last)
	}
	fmt.Println("others", report.Other.Units)
}
