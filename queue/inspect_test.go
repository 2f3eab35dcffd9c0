package queue_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/redis/go-redis/v9"
)

// inspectedScopes is more scopes than Inspect looks at.
const inspectedScopes = 70

// oneRunEach returns a limiter under which each tenant of p has one run at a time, of a minute, and the prefix of its keys.
func oneRunEach(t *testing.T) (rdb *redis.Client, limiter *throttle.Limiter, prefix string) {
	t.Helper()
	rdb, prefix = redistest.Client(t), redistest.Prefix(t)
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "runs", Algorithm: policy.Concurrency, Limit: 1}}}},
	}})
	must(t, err)
	if limiter, err = throttle.New(rdb, pol, throttle.Config{Prefix: prefix}); err != nil {
		t.Fatal(err)
	}
	for i := range inspectedScopes {
		rdb.Set(t.Context(), fmt.Sprintf("%s:{p}:t:/%d:runs", prefix, i), "100 60000000 0", 0)
	}
	return rdb, limiter, prefix
}

// "Inspect makes Enqueue read what a task that waits is waiting for, and EnqueueBatch, for its Summary alone, when tasks start
// whose starts are unknown otherwise", "64 at most".
func TestInspect(t *testing.T) {
	t.Parallel()
	rdb, limiter, prefix := oneRunEach(t)
	var told queue.Result
	silent := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, Inspect: true})
	var names []string
	for i := range inspectedScopes {
		names = append(names, fmt.Sprint("p/", i))
	}
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
		sum, err := c.EnqueueBatch(t.Context(), named(id, n), func(r queue.Result) { told = r })
		if err != nil || sum.Enqueued != n*inspectedScopes {
			t.Fatalf("%+v, %v", sum, err)
		}
		return sum
	}
	if sum := batch(silent, "silent", 2); sum.Untold != inspectedScopes || !sum.DoneTo.IsZero() {
		t.Errorf("not asked: %+v", sum)
	}
	began := time.Now()
	sum := batch(client, "asking", 2)
	if sum.Untold != 2*(inspectedScopes-64) || sum.DoneAt.Sub(began) < 150*time.Second || !sum.DoneFrom.Before(sum.DoneAt) || !sum.DoneAt.Before(sum.DoneTo) || sum.Binding.Rule != "runs" {
		t.Errorf("behind three runs of a minute: %+v", sum)
	}
	if !told.Start.IsZero() || told.Reason != "" {
		t.Errorf("a task of a batch was inspected: %+v", told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sum, err := client.EnqueueBatch(ctx, named("cut", 2), func(queue.Result) { cancel() })
	if sum.Enqueued == 0 || sum.Untold != sum.Enqueued {
		t.Errorf("interrupted: %+v, %v", sum, err)
	}
	for c, asks := range map[*queue.Client]bool{client: true, silent: false} {
		r, err := c.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/0", Queue: prefix})
		if err != nil || !r.Waits || r.Start.IsZero() == asks || r.StartFrom.Before(r.Start) != asks || (r.Reason == queue.ReasonRun) != asks || (r.Binding == queue.Binding{Scope: "p/0", Rule: "runs"}) != asks {
			t.Errorf("asks %t: %+v, %v", asks, r, err)
		}
	}
}

// What waits for the end of a pause by its API says so, and of which scope, as in a Forecast.
func TestInspectUpstreamPause(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Second}}}})
	must(t, err)
	limiter, err := throttle.New(rdb, pol, throttle.Config{Prefix: prefix})
	must(t, err)
	if _, err := limiter.Report(t.Context(), "p/a", upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true}); err != nil {
		t.Fatal(err)
	}
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, Inspect: true})
	r, err := client.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/a", Queue: prefix})
	if err != nil || r.Reason != queue.ReasonUpstream || r.Binding != (queue.Binding{Scope: "p/a"}) {
		t.Errorf("%+v, %v", r, err)
	}
}
