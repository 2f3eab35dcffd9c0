package dialect

import "github.com/headway-go/headway/throttle/upstream"

// Stripe counts requests a second, of an account (100, in a sandbox 25) and of an endpoint (25 unless its page says otherwise), and
// requests in progress of both. A 429 names the limiter in Stripe-Rate-Limited-Reason (the page has all five) and gives no time. A 429 with the code
// lock_timeout is no limit: another request holds the object, and the task tries again as after any fault.
var stripe = &Dialect{
	Name:   "stripe",
	Source: "https://docs.stripe.com/rate-limits",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases:      []upstream.Case{{Status: 429, JSON: "error.code=lock_timeout", Means: upstream.Fine}},
		NameFields: []string{"Stripe-Rate-Limited-Reason"},
		Reasons: map[string]string{
			"global-rate":          upstream.ScopeTop,
			"global-concurrency":   upstream.ScopeTop,
			"endpoint-rate":        upstream.ScopeHere,
			"endpoint-concurrency": upstream.ScopeHere,
			"resource-specific":    upstream.ScopeHere, // one object, such as a PaymentIntent
		},
	},
}
