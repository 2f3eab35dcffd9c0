// Package queue makes tasks and enqueues them into asynq.
//
// A [Task] is one piece of work with the scope that it spends from, its cost, its retry budget for real failures, and its
// deadline. These are kept in headers of the asynq task, where the worker package reads them ([ReadSpec]), whatever asynq does to
// the task meanwhile. asynq itself gets an unlimited retry count and no timeout, because it cannot distinguish a limited task
// from a failed one; the worker enforces the budget and the timeout in the headers. A task that this package enqueues must
// therefore run in a worker that wraps its handlers with package worker.
//
// [Client.Enqueue] enqueues one task, [Client.EnqueueBatch] any number in constant memory. [Reader]
// reads tasks from NDJSON, which [Task.AppendLine] writes. An invalid task is refused before anything
// is enqueued, with an [InvalidError] that lists every fault.
//
// The worker publishes its policy (package policystore). A Client with that policy ([PublishedPolicy],
// [ClientConfig]) refuses at once any task that could never run.
package queue
