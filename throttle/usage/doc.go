// Package usage tells who uses a scope: which applications, queues and task types
// spent from it lately, how many units in how many tasks, and when last; tokens and
// whatever else costs by unit apart.
//
//	recorder, err := usage.New(rdb, usage.Config{App: "billing"})
//	go recorder.Run(ctx)
//	limiter, err := throttle.New(rdb, policy, throttle.Config{OnSpent: recorder.Record})
//	…
//	limiter.Allow(ctx, "payments/acme") // is recorded
//
//	report, err := usage.Read(ctx, rdb, usage.Config{}, "payments", time.Hour)
//
// Spending is added up in memory and sent to Redis every ten seconds, so that no task
// and no decision costs a command. What is spent from a scope counts at every level of
// its path. worker.New records the tasks that it starts, with their queue and type, and all
// else that its limiter grants. With a limiter of your own, throttle.Config{OnSpent: recorder.Record}
// records what requests are granted by Allow, Decide and Wait, and by packages roundtrip and inbound. A
// refund takes it back, Settle corrects it. A program that wants to name a queue or a type calls Spent
// and Settled itself, and leaves OnSpent out.
//
// What shadow rules would have done is recorded beside it, at the level at which each
// counts, where the limiter tells it: throttle.Config{OnShadow: recorder.Shadowed}.
//
// The count is for people, not for limits: it never decides anything. It is off by the
// time that clocks of processes differ, and a crash or a fault of Redis loses what was
// not sent.
//
// Everything is bounded. Between two flushes a process has at most 1000 scopes and 4000
// combinations of scope, applications, queue and type in memory. In Redis a provider has
// at most 1000 scopes in each slot of time, and a scope 40 combinations, those that spent
// most; the units of others count as "other", and at the levels above. Of a scope a process
// tells 8 units besides requests, and a slot has 328 sums by unit. Every key has
// a TTL, of 32 days at most: slots are 5 minutes long for an hour, 2 hours for a day, and a day for 31 days.
// Sums alone are kept in slots of 15 seconds for a quarter of an hour too.
// docs/operations.md says what that takes.
package usage
