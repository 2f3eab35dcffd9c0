package policystore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// A customer bought more: every process that follows the limits has it within a second.
func ExampleStore_Set() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	rules, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  payments:
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}
`))
	if err != nil {
		log.Fatal(err)
	}
	store := policystore.New(rdb, policystore.Config{Prefix: "example-set"})
	if _, _, err := store.PublishFile(ctx, "deploy", rules, false); err != nil {
		log.Fatal(err)
	}

	made, err := store.Set(ctx, policystore.Edit{By: "billing"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
	if err != nil {
		log.Fatal(err) // somebody else changed the rule meanwhile, or Redis is away
	}
	fmt.Println(made.Differences[0].After)

	_, err = store.Set(ctx, policystore.Edit{By: "billing"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
	fmt.Println(errors.Is(err, policystore.ErrUnchanged))

	for change, err := range store.Changes(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("version", change.Version.Number, "by", change.Version.By)
	}
	// Output:
	// {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}
	// true
	// version 1 by deploy
	// version 2 by billing
}

// A process follows the limits in Redis until its context ends.
func ExampleFollow() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	limiter, err := throttle.New(rdb, policy.PerSecond("payments", 20), throttle.Config{Prefix: "example-follow"})
	if err != nil {
		log.Fatal(err)
	}
	store := policystore.New(rdb, policystore.Config{Prefix: "example-follow"})
	if _, err := store.Import(ctx, policystore.Edit{By: "anna"}, policy.PerSecond("payments", 50), "", true); err != nil {
		log.Fatal(err)
	}
	go policystore.Follow(ctx, store, limiter, policystore.FollowConfig{})

	for {
		d, err := limiter.Peek(ctx, throttle.Request{Scope: "payments"})
		if err != nil {
			log.Fatal(err)
		}
		if d.Rules[0].Limit != 20 { // in force within a second
			fmt.Println(d.Rules[0].Limit)
			return
		}
	}
	// Output:
	// 50
}
