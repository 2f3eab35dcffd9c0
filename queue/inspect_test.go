package queue_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/upstream"
)

// inspectedScopes is more scopes than Inspect looks at.
const inspectedScopes = 70

// Inspect reads what an enqueued task waits for and, for the Summary of a batch, the starts of tasks that wait for runs, "64 at most".
func TestInspect(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	limiter := limited(t, rdb, prefix, "limits: {p: {scopes: {'*': {rules: [{name: runs, algorithm: concurrency, limit: 1}]}}}, "+
		"q: {rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}}")
	var names []string
	for i := range inspectedScopes {
		names = append(names, fmt.Sprint("p/", i))
		rdb.Set(t.Context(), fmt.Sprintf("%s:{p}:t:/%d:runs", prefix, i), "100 60000000 0", 0) // runs of a minute
	}
	var last queue.Result
	silent := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, Inspect: true})
	named := func(id string, n int) iter.Seq[queue.Entry] {
		return func(yield func(queue.Entry) bool) {
			for e := range many(prefix, n, names...) {
				if e.Task.ID = id + e.Task.ID; !yield(e) {
					return
				}
			}
		}
	}
	batch := func(c *queue.Client, id string, n int) queue.Summary {
		t.Helper()
		sum, err := c.EnqueueBatch(t.Context(), named(id, n), func(r queue.Result) { last = r })
		if err != nil || sum.Enqueued != n*inspectedScopes {
			t.Fatalf("%+v, %v", sum, err)
		}
		return sum
	}
	if sum := batch(silent, "silent", 2); sum.UnknownStarts != inspectedScopes || !sum.DoneTo.IsZero() {
		t.Errorf("not asked: %+v", sum)
	}
	began := time.Now()
	sum := batch(client, "asking", 2)
	if sum.UnknownStarts != 2*(inspectedScopes-64) || sum.DoneAt.Sub(began) < 150*time.Second || !sum.DoneFrom.Before(sum.DoneAt) || !sum.DoneAt.Before(sum.DoneTo) || sum.Binding.Rule != "runs" {
		t.Errorf("behind three runs of a minute: %+v", sum)
	}
	if !last.Start.IsZero() || last.Reason != "" {
		t.Errorf("a task of a batch was inspected: %+v", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sum, err := client.EnqueueBatch(ctx, named("cut", 2), func(queue.Result) { cancel() })
	if sum.Enqueued == 0 || sum.UnknownStarts != sum.Enqueued {
		t.Errorf("interrupted: %+v, %v", sum, err)
	}
	for c, asks := range map[*queue.Client]bool{client: true, silent: false} {
		r, err := c.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/0", Queue: prefix})
		if err != nil || !r.Waits || r.Start.IsZero() == asks || r.StartFrom.Before(r.Start) != asks || (r.Reason == queue.ReasonRun) != asks || (r.Binding == queue.Binding{Scope: "p/0", Rule: "runs"}) != asks {
			t.Errorf("asks %t: %+v, %v", asks, r, err)
		}
	}
	_, err = limiter.Report(t.Context(), "q/a", upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true})
	must(t, err)
	r, err := client.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "q/a", Queue: prefix})
	if err != nil || r.Reason != queue.ReasonUpstream || r.Binding != (queue.Binding{Scope: "q/a"}) {
		t.Errorf("behind a pause by its API: %+v, %v", r, err)
	}
}
