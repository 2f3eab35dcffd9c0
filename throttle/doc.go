// Package throttle limits what a program, or any number of them, spends: calls
// to an API, tokens, runs at once. It decides in Redis and knows of no queue;
// package worker puts it around tasks of asynq.
//
// A [Policy], from limits.yaml ([LoadPolicy]) or from Go values ([NewPolicy]), has
// the rules of each [Scope], a path of names such as payments/acme/refunds. A
// [Limiter] decides under all rules on a request's path together:
//
//	limiter, err := throttle.New(rdb, policy, throttle.Config{})
//	d, err := limiter.Allow(ctx, "payments/acme/refunds")
//	if !d.Allowed { … come back in d.RetryAfter … }
//
// [Limiter.Wait] waits until it may, [Limiter.Peek] only looks, [Limiter.GiveBack]
// undoes a grant whose work did not happen, and [Limiter.Hold] keeps a place under a
// concurrency rule while work lasts.
//
// # What holds
//
// One decision is one script in Redis: all rules pass and all are charged, or none
// is, and then nothing has changed. Redis's clock is the only one. A decision that
// is sent twice, after a lost reply, is charged once. State is kept apart from
// limits, so that a changed limit finds what has been spent. Every key has a TTL
// that outlasts its meaning. The bound of each [Algorithm] holds for starts that
// come within [Config].Pad of the moment they were granted for; docs/algorithms.md
// has the proofs.
//
// # What Redis has, and what happens without it
//
// Redis is the authority: a Limiter keeps no count of its own while it answers.
// When it does not, the [FailurePolicy] of each rule decides, closed unless it says
// otherwise, and never silently. A denial is a [Decision]; an error means that
// nothing was decided.
package throttle
