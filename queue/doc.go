// Package queue makes tasks and enqueues them into asynq.
//
// A [Task] says what to do and what it spends: the scope that it spends from,
// its cost, how often it may be retried after real failures, until when it
// makes sense. These stand in headers of the asynq task, where the worker
// package finds them ([ReadSpec]), whatever asynq does to the task meanwhile.
// asynq itself is told to retry without end and to cut no run short, since it
// cannot tell a limited task from a failed one; the budget and the time-out in
// the headers are kept by the worker. A task enqueued here must therefore be run
// by a worker that wraps its handlers with package worker.
//
// [Client.Enqueue] enqueues one task, [Client.EnqueueBatch] any number in
// constant memory. [Reader] reads tasks from NDJSON, which [Task.AppendLine]
// writes. What is wrong with a task is told in full, as an [InvalidError] that
// lists every fault, before anything is enqueued.
//
// The worker publishes the policy it runs (package policystore); a Client that is
// given it ([PublishedPolicy], [ClientConfig]) refuses at once what could never
// run.
package queue
