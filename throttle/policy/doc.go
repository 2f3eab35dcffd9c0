// Package policy defines limits: rules, the scopes that they apply to, and the costs of tasks.
//
//	limiter, err := throttle.New(rdb, policy.PerSecond("payments", 100), throttle.Config{})
//
// A Policy is a tree of names. It determines the rules of each scope: payments/acme/refunds is
// subject to the rules of payments, of payments/acme and of payments/acme/refunds (Policy.Match). It
// is immutable. A policy that is built in Go (New, PerSecond) and one that was read from a file
// (NewFrom) are checked alike.
//
// The package does no file access and knows no Redis. Package limitsyaml reads and writes
// limits.yaml, package throttle decides, and package policystore distributes policies to processes.
package policy
