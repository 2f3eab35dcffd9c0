// Package throttle decides whether work may start now under limits that many processes share through Redis, and otherwise when.
// It knows nothing of task queues: package worker puts it in front of asynq's handlers.
//
// # Methods
//
// A [policy.Policy] holds the rules of each scope: payments/acme/refunds is subject to the rules of payments, of payments/acme
// and of payments/acme/refunds. Load one from limits.yaml (limitsyaml.Load), or build it in Go (policy.New, policy.PerSecond). A
// [Limiter] decides under all of these rules at once:
//
//	limiter, err := throttle.New(rdb, policy, throttle.Config{})
//	d, err := limiter.Allow(ctx, "payments/acme/refunds")
//	if !d.Allowed { … come back in d.RetryAfter … }
//
// Most callers want [Limiter.Wait], which blocks until the start has come. [Limiter.Allow] takes one unit now, or denies: for
// callers that reject work instead of waiting, as package inbound does. [Limiter.Decide] is Allow with a cost, an attempt id, and
// starts that may lie a little ahead; [Limiter.Start] also waits for those, as package worker does for each task. A grant can be
// held ([Limiter.Lease]), corrected ([Limiter.Settle]) and given back ([Limiter.Refund]).
//
// A denial is a [Decision], never an error. It says which rule binds, what is left, and when to come back. An error means that
// nothing was decided.
//
// # Guarantees
//
// Redis is authoritative for all that has been spent, and its clock is the only one. One decision is one script call and one
// round trip, whatever the number of rules.
//
// Either all rules on the path admit a request and all are charged, or none is. A denial changes nothing. Each [policy.Algorithm]
// documents its own bound. The bounds hold for the moments at which runs start, in all processes, if each run starts within
// Config.StartTolerance of its granted start. Wait and Start ensure that. docs/algorithms.md has the proofs.
//
// A decision that is sent twice, by go-redis after a lost reply or by the caller under the same attempt id, is charged once:
// Redis remembers each grant for half a minute. An attempt whose context has ended is given back, and its id is used up.
//
// A changed limit keeps what has been spent: see [Limiter.SetPolicy]. Every key has a time to live: the keys of an unused scope
// expire one window and a minute later.
//
// # When Redis is unavailable
//
// Redis may be down, too slow, full, read-only, or refuse the call. Then each rule's [policy.FailurePolicy] decides, closed by
// default, which returns [ErrUnavailable]. A closed rule on the path outweighs the others. A decision of the others is marked
// Degraded. A context that has ended is not an outage, and its own error is returned. If a reply is lost for good, units may stay
// spent that no run used. They come back by the clock, and places when their lease expires.
//
// The client's own time-outs come before [Config].Timeout unless its ContextTimeoutEnabled is set, which is recommended.
//
// # Access
//
// This is the smallest ACL rule that works, for keys under the default prefix and a Redis user of
// its own. A cluster client also needs +cluster|slots, a Ring client +ping.
//
//	&hw:wake ~hw:{* ~hw:active ~hw:members ~hw:processes %R~hw:limits*
//	+evalsha +eval +time +get +set +setrange +incrby +pttl +pexpire +expire +exists +del +publish
//	+hdel +hexists +hget +hgetall +hincrby +hkeys +hlen +hmget +hscan +hset +hvals +mget
//	+zadd +zcard +zcount +zmscore +zrange +zrangebyscore +zrank +zrem +zremrangebyrank +zremrangebyscore +zrevrange +zrevrangebyscore +zscore +zunionstore
//
// %R~ lets package policystore read the limits but not change them, and needs Redis 7.
//
// Any [redis.UniversalClient] works: a single server, Sentinel, Cluster or Ring, with or without
// TLS. All keys of one provider, the first name of a scope, share a cluster slot.
//
// # Testing
//
// Package throttletest has a test double with scripted answers, and a real limiter over an in-memory
// Redis that works in bubbles of testing/synctest.
package throttle
