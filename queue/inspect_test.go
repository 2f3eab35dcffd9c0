package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "Inspect makes Enqueue read what a task that waits is waiting for, and EnqueueBatch, for its Summary alone, when tasks start
// whose starts are unknown otherwise", "64 scopes at most".
func TestInspect(t *testing.T) {
	t.Parallel()
	const scopes = 70
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "runs", Algorithm: policy.Concurrency, Limit: 1}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := throttle.New(rdb, pol, throttle.Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	var told queue.Result
	silent := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, Inspect: true})
	rdb.Set(t.Context(), prefix+":{p}!runs/%2A:runs", "100 60000000 0", 0)
	var names []string
	for i := range scopes {
		names = append(names, fmt.Sprint("p/", i))
	}
	batch := func(c *queue.Client, id string, n int) queue.Summary {
		t.Helper()
		sum, err := c.EnqueueBatch(t.Context(), many(prefix+id, n, names...), func(r queue.Result) { told = r })
		if err != nil || sum.Enqueued != n*scopes {
			t.Fatalf("%+v, %v", sum, err)
		}
		return sum
	}
	if sum := batch(silent, "silent", 2); sum.Untold != scopes || !sum.DoneTo.IsZero() {
		t.Errorf("not asked: %+v", sum)
	}
	began := time.Now()
	sum := batch(client, "asking", 2)
	if sum.Untold != 2*(scopes-64) || sum.DoneAt.Sub(began) < 150*time.Second || !sum.DoneFrom.Before(sum.DoneAt) || !sum.DoneAt.Before(sum.DoneTo) || sum.Binding.Rule != "runs" {
		t.Errorf("behind three runs of a minute: %+v", sum)
	}
	if !told.Start.IsZero() || told.Reason != "" {
		t.Errorf("a task of a batch was inspected: %+v", told)
	}
	for c, asks := range map[*queue.Client]bool{client: true, silent: false} {
		r, err := c.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/0", Queue: prefix})
		if err != nil || !r.Waits || r.Start.IsZero() == asks || r.StartFrom.Before(r.Start) != asks || (r.Reason == queue.ReasonRun) != asks || (r.Binding == queue.Binding{Scope: "p/0", Rule: "runs"}) != asks {
			t.Errorf("asks %t: %+v, %v", asks, r, err)
		}
	}
}
