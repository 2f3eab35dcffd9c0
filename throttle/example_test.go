package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

var ctx = context.Background()

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// limiterOf returns a limiter under limits as limits.yaml has them. A program's
// own comes from limitsyaml.Load and its Redis client.
func limiterOf(name, limits string) *throttle.Limiter {
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr(), ContextTimeoutEnabled: true})
	limiter, err := throttle.New(rdb, policy, throttle.Config{
		Prefix:         "example-" + name + throttle.NewID(),
		StartTolerance: -1, // so that the numbers below are round
	})
	check(err)
	return limiter
}

// Allow takes one unit under every rule on the path, or none.
func ExampleLimiter_Allow() {
	limiter := limiterOf("allow", `limits: {payments: {
  rules: [{name: account, algorithm: sliding-window, limit: 100, per: 1h}],
  scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 10m}]}}}}`)
	for range 3 {
		d, err := limiter.Allow(ctx, "payments/acme")
		check(err) // nothing was decided
		rule, _ := d.BindingRule()
		fmt.Println(d.Allowed, rule.Rule, rule.Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true tenant 1 0s
	// true tenant 0 0s
	// false tenant 0 10m0s
}

// AllowAtMost takes what there is, for callers that can do less.
func ExampleLimiter_AllowAtMost() {
	limiter := limiterOf("atmost", `limits: {mail: {rules: [{name: hourly, algorithm: sliding-window, limit: 100, per: 1h}]}}`)
	for range 3 {
		d, taken, err := limiter.AllowAtMost(ctx, "mail", 60) // letters that wait
		check(err)
		fmt.Println("send", taken, "and come back in", d.RetryAfter.Round(time.Hour))
	}
	// Output:
	// send 60 and come back in 0s
	// send 40 and come back in 0s
	// send 0 and come back in 1h0m0s
}

// Decide takes a cost. What no wait will ever admit is an error of its own.
func ExampleLimiter_Decide() {
	limiter := limiterOf("decide", `limits: {search: {rules: [{name: tokens, algorithm: token-bucket, limit: 1000, per: 1h, burst: 500}]}}`)
	for _, cost := range []int64{400, 200, 501} {
		d, err := limiter.Decide(ctx, throttle.Request{Scope: "search", Cost: cost})
		if permanent := (*policy.CostError)(nil); errors.As(err, &permanent) {
			fmt.Println("never:", permanent.Cost, "is more than", permanent.Capacity)
			continue
		}
		fmt.Println(d.Allowed, d.Rules[0].Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 100 0s
	// false 100 6m0s
	// never: 501 is more than 500
}

// Wait blocks until the start has come; here for 50 ms, since the first took the only unit.
func ExampleLimiter_Wait() {
	limiter := limiterOf("wait", `limits: {sms: {rules: [{name: pace, algorithm: token-bucket, limit: 1, per: 1s}]}}`)
	began := time.Now()
	for range 2 {
		_, err := limiter.Wait(ctx, throttle.Request{Scope: "sms"})
		check(err)
	}
	fmt.Println(time.Since(began) >= time.Second)

	// A deadline that the wait would outlast is refused at once.
	soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := limiter.Wait(soon, throttle.Request{Scope: "sms"})
	fmt.Println(errors.Is(err, throttle.ErrMaxWait))
	// Output:
	// true
	// true
}

// Hold keeps a place under a concurrency rule while a run lasts. The run works
// under the context that Hold returns: it ends when the place is lost.
func ExampleLimiter_Lease() {
	limiter := limiterOf("hold", `limits: {render: {rules: [{name: parallel, algorithm: concurrency, limit: 1, lease: 30s}]}}`)
	render := func(ctx context.Context) error { return ctx.Err() }

	d, err := limiter.Allow(ctx, "render")
	if err != nil || !d.Allowed {
		log.Fatal(err)
	}
	held, lease := limiter.Lease(ctx, d.Grant)
	other, err := limiter.Allow(ctx, "render")
	fmt.Println("a second run beside it:", other.Allowed, err)
	fmt.Println("the run:", render(held))
	fmt.Println("its release:", lease.Release(ctx))
	other, err = limiter.Allow(ctx, "render")
	fmt.Println("a second run after it:", other.Allowed, err)
	// Output:
	// a second run beside it: false <nil>
	// the run: <nil>
	// its release: <nil>
	// a second run after it: true <nil>
}

// Refund undoes a grant whose run did not happen.
func ExampleLimiter_Refund() {
	limiter := limiterOf("back", `limits: {search: {rules: [{name: plan, algorithm: sliding-window, limit: 3, per: 1h}]}}`)
	d, err := limiter.Decide(ctx, throttle.Request{Scope: "search", Cost: 3})
	check(err)
	fmt.Println(d.Allowed, d.Rules[0].Remaining)
	check(limiter.Refund(ctx, d.Grant))
	d, err = limiter.Peek(ctx, throttle.Request{Scope: "search"})
	fmt.Println(d.Allowed, d.Rules[0].Remaining, err)
	// Output:
	// true 0
	// true 3 <nil>
}

// The five numbers that many limiters answer with: limited, limit, remaining,
// retry after, reset after; in whole seconds, rounded up.
func ExampleDecision_Tuple() {
	limiter := limiterOf("five", `limits: {user: {scopes: {"*": {rules: [{name: hourly, algorithm: token-bucket, limit: 60, per: 1h, burst: 2}]}}}}`)
	for range 3 {
		d, err := limiter.Allow(ctx, "user/alex")
		check(err)
		fmt.Println(d.Tuple())
	}
	// Output:
	// [0 2 1 -1 60]
	// [0 2 0 -1 120]
	// [1 2 0 60 120]
}

// What an HTTP server tells its callers. No name that only a caller brought is in it.
func ExampleDecision_Header() {
	limiter := limiterOf("header", `limits: {api: {
  rules: [{name: all, algorithm: fixed-window, limit: 1000, per: 1d}],
  scopes: {"*": {rules: [{name: caller, algorithm: sliding-window, limit: 1, per: 1h}]}}}}`)
	for range 2 {
		d, err := limiter.Allow(ctx, "api/alex")
		check(err)
		header := d.Header()
		_, caller, _ := strings.Cut(header.Get("RateLimit"), ", ")
		fmt.Println(caller)
		fmt.Println(header.Get("RateLimit-Policy"))
		fmt.Println(header.Get("Retry-After"))
	}
	// Output:
	// "api/*:caller";r=0;t=3600
	// "api:all";q=1000;w=86400, "api/*:caller";q=1;w=3600
	//
	// "api/*:caller";r=0;t=3600
	// "api:all";q=1000;w=86400, "api/*:caller";q=1;w=3600
	// 3600
}
