// Package policy says what is limited, and by how much: rules, the scopes at which they stand, and what tasks cost.
//
//	limiter, err := throttle.New(rdb, policy.PerSecond("payments", 100), throttle.Config{})
//
// A Policy is a tree of names, and says which rules a scope meets: payments/acme/refunds meets those of payments, of
// payments/acme and of payments/acme/refunds (Policy.Match). It is immutable. One that is made of Go values (New, PerSecond) and
// one that was read from a file (NewFrom) are checked alike.
//
// The package knows no file and no Redis: package limitsyaml reads and writes limits.yaml, package throttle decides, and package
// policystore keeps policies for many processes.
package policy
