// Package throttle decides whether work may start now under limits that many
// processes share through Redis, and when if not. It knows nothing of queues:
// package worker puts it in front of asynq's handlers.
//
// # Which verb
//
// A [Policy] says which rules a scope meets: payments/acme/refunds meets those
// of payments, of payments/acme and of payments/acme/refunds. It comes from
// limits.yaml (limitsyaml.Load) or from Go values (policy.New, policy.PerSecond). A [Limiter] decides
// under all of them at once:
//
//	limiter, err := throttle.New(rdb, policy, throttle.Config{})
//	d, err := limiter.Allow(ctx, "payments/acme/refunds")
//	if !d.Allowed { … come back in d.RetryAfter … }
//
// It has these verbs:
//
//   - [Limiter.Wait] blocks until the start has come. Most callers want it.
//   - [Limiter.Allow] takes one unit now, or says no. For callers that turn
//     away instead of waiting, such as HTTP servers: package inbound does it for them.
//   - [Limiter.AllowAtMost] is Allow of as many units as there are, up to a number.
//   - [Limiter.Decide] is Allow with a cost, an attempt id of the caller's, and
//     starts that may lie a little ahead.
//   - [Limiter.Start] is Decide that also waits for a start that lies ahead. It
//     is what package worker calls for each task.
//   - [Limiter.Peek] says what Decide would, and takes nothing.
//   - [Limiter.Refund] undoes a grant whose run did not happen.
//   - [Limiter.Lease] keeps the places under concurrency rules while a run lasts.
//
// [Limiter.Report] and [Limiter.UpstreamState] heed what an API says of its limits, [Limiter.Settle] corrects an
// estimated cost, [Limiter.Inspect] and [Limiter.Forecast] look at those who wait. Programs that let denied requests
// wait in line, as package worker does, find what that takes in [Waitlist] and Request.Turn; others need neither.
//
// A denial is a [Decision], never an error: it says which rule binds, what is
// left, and when to come back. An error means that nothing was decided.
//
// # What is promised
//
// Redis is authoritative for all that has been spent, and its clock is the only
// one: a limiter keeps nothing but the policy. One decision is one script call
// and one round trip, whatever the number of rules; callers who ask at the same
// time share round trips.
//
// All rules on the path pass and all are charged, or none is. A denial changes
// nothing. What each algorithm promises stands at [Algorithm]; the bounds hold
// for the moments at which runs start, in this and every other process, as long
// as each starts within Config.StartTolerance of the moment that it was granted for, which
// Wait and Start see to. docs/algorithms.md has the proofs.
//
// Sending a decision twice charges once: every attempt has an id, drawn at
// random unless the caller has one, under which Redis remembers the grant for
// half a minute. go-redis repeats commands after a lost reply, and so may you,
// under the same id. An attempt whose context ended is given back and over.
//
// Limits are no part of a key. Changing a limit keeps what has been spent, and
// so does changing a rule's algorithm, concurrency apart. Every key has a time
// to live: what nobody spends from is gone one window and a minute later.
//
// # When Redis cannot answer
//
// Redis may be down, too slow, full, read-only, or refuse the call. Then each
// rule's [FailurePolicy] decides: closed (the default) decides nothing and
// returns [ErrUnavailable]; open lets the run start uncounted; share counts in
// this process against the limit divided by the processes that [Limiter.Heartbeat]
// saw. A closed rule on the path outweighs the others, share without Join is
// closed, and the answer says that it is Degraded: no rule is ever silently
// open. A context that has ended is the context's own error and no outage.
//
// A reply that is lost for good leaves units spent that nobody used, which is
// safe; they come back by the clock, and places when their lease ends.
//
// [Config].Timeout bounds how long a decision takes. The client's own time-outs
// come first unless its ContextTimeoutEnabled is set, which is recommended.
//
// # Access
//
// The smallest ACL rule that works, for keys under the default prefix and a
// user of its own (a cluster client needs +cluster|slots too, a Ring client +ping):
//
//	~hw:{* ~hw:turns ~hw:members ~hw:processes %R~hw:limits* +evalsha +eval +time +get +set +pttl +pexpire
//	+exists +del +unlink +mget +hdel +hexists +hget +hgetall +hmget +hscan +hset
//	+zadd +zcard +zcount +zrange +zrangebylex +zrangebyscore +zrank +zrem +zremrangebyscore +zrevrangebyscore +zscan +zscore
//
// %R~ is for package policystore, and needs Redis 7: it reads the limits there and cannot change them.
// With +setrange besides, decisions of many callers go out as one script
// call; without it they are decided one by one.
//
// Any [redis.UniversalClient] will do: a single server, Sentinel, Cluster or
// Ring, with TLS or without. All keys of one provider, the outermost name of a
// scope, share a cluster slot.
//
// # Testing
//
// Package throttletest has a stand-in with scripted answers, and a real limiter
// over a Redis in memory that works in bubbles of testing/synctest.
package throttle
