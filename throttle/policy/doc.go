// Package policy says what is limited, and by how much: rules, the scopes at which they stand, what tasks cost, and
// limits.yaml, which has all of it.
//
//	rules, err := policy.Load("limits.yaml")
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//
// A Policy is a tree of names, and says which rules a scope meets: payments/acme/refunds meets those of payments, of
// payments/acme and of payments/acme/refunds (Policy.Match). It is immutable. One that is made of Go values (New, PerSecond) and
// one that was read (Load, Parse) are checked alike, and Policy.YAML writes either.
//
// The package has never heard of Redis: package throttle decides, and package policystore keeps policies for many processes.
package policy
