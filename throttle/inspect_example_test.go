package throttle_test

import (
	"fmt"
	"log"
	"time"

	"github.com/headway-go/headway/throttle"
)

// Inspect tells of all who wait in a scope, InspectWaiter of one of them.
func ExampleLimiter_Inspect() {
	limiter := limiterOf("inspect", `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 1, per: 1h}
`)
	for _, ticket := range []string{"first", "second", "third"} {
		if _, err := limiter.Decide(ctx, throttle.Request{Scope: "payments/acme", Turn: throttle.Turn{WaiterID: ticket}}); err != nil {
			log.Fatal(err)
		}
	}
	got, err := limiter.Inspect(ctx, "payments")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(got.Waiting, "wait, the next for", got.NextStart.In.Round(time.Hour), "by rule", got.Binding.Rule.Name)

	third, err := limiter.Waitlist().InspectWaiter(ctx, throttle.Waiter{Scope: "payments/acme", ID: "third"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(third.Waits, third.Ahead, third.Expected.In.Round(time.Hour))
	// Output:
	// 2 wait, the next for 1h0m0s by rule account
	// true 1 2h0m0s
}
