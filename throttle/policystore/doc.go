// Package policystore keeps limits in Redis, where they can be changed while tasks run:
// versions of one policy, each with who made it, when and why, and a history that can
// be gone back in.
//
//	store := policystore.New(rdb, policystore.Config{})
//	_, err := store.Set(ctx, policystore.Edit{By: "anna"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
//
// Every process that decides follows the store, and puts a new version in force at the
// same moment, a second after it was written at the latest:
//
//	go policystore.Follow(ctx, store, limiter, policystore.FollowConfig{Logger: log})
//
// What stands there has three layers. At the bottom is the file that workers were
// started with, and published. An imported policy stands in its place. Over either lie
// rules that were set or removed one by one, for good or for a time.
package policystore
