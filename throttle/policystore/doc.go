// Package policystore keeps limits in Redis, where they can be changed while tasks run. It holds
// versions of one policy, each with its author, time and reason, and a history that supports rollback.
//
//	store := policystore.New(rdb, policystore.Config{})
//	_, err := store.Set(ctx, policystore.Edit{By: "anna"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
//
// Every process that decides follows the store. All of them put a new version in force at the same
// moment, at most a second after it was written:
//
//	go policystore.Follow(ctx, store, limiter, policystore.FollowConfig{Logger: log})
//
// A version has up to three layers. The lowest is the limits file that workers published at their
// start. An imported policy replaces it. Above either are rules that were set or removed one by one,
// permanently or for a time.
package policystore
