package control

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// docs/json.md: no_worker is "true for a task that waits while no live worker serves its queue".
func TestNoWorker(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/x")
	a.enqueue(queue.Task{Scope: "daily/x", ID: "one", Queue: "bulk"})
	a.enqueue(queue.Task{Scope: "daily/x", ID: "two", Queue: "other"})
	if !a.task("one").NoWorker || !a.task("two").NoWorker {
		t.Error("no worker runs at all, and that is not said")
	}
	server := asynq.NewServerFromRedisClient(a.rdb, asynq.Config{Queues: map[string]int{"bulk": 1}, LogLevel: asynq.FatalLevel})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	t.Cleanup(server.Shutdown)
	redistest.WaitFor(t, "a worker that serves bulk to be seen", 20*time.Second, func() bool {
		a.Service = New(Config{Redis: a.rdb, Limiter: a.limits, Store: a.store}) // which has read nothing yet
		return !a.task("one").NoWorker
	})
	if !a.task("two").NoWorker {
		t.Error("no worker serves other, and one is said to")
	}
}
