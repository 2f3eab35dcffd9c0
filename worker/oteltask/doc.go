// Package oteltask traces Headway's tasks with OpenTelemetry: who enqueued a task, how long it waited
// for its limits and for which rule, and its run.
//
//	tracing := oteltask.New(oteltask.Config{})
//	client := queue.NewClient(rdb, queue.ClientConfig{OnEnqueue: tracing.OnEnqueue})
//	limits, err := worker.New(rdb, worker.Config{Middleware: worker.MiddlewareConfig{Tracer: tracing}})
//	handler, err := outbound.New(outbound.Config{Headers: tracing.Headers})
//
// There are four kinds of spans:
//
//   - "send QUEUE", a producer: one task is enqueued. Its context travels in the task's headers.
//   - "process QUEUE", a consumer: one run. It begins a trace of its own, which is linked to the
//     producer's, since a task may wait for hours.
//   - "wait QUEUE", below the run: the wait for the limits before it, with the rule that the task waited
//     for, how many waiters were before it, and the start that was expected.
//   - "receive QUEUE", a consumer: a worker took the task and did not run it. Usually the task has to
//     wait, which is the event "limited" and no error.
//
// Names and attributes follow OpenTelemetry's conventions for messaging, which are not stable yet.
// Neither are they here: a minor version may follow a change. docs/tracing.md lists them.
package oteltask
