package queue_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// planned returns a client that gives turns, under limits of the test's own.
func planned(t *testing.T, rdb redis.UniversalClient) *queue.Client {
	t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
		Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Second}},
		Scopes: map[string]policy.ScopeConfig{
			"*":   {Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 10, Per: time.Second}}},
			"off": {Rules: []policy.Rule{{Name: "off", Algorithm: policy.SlidingWindow, Limit: 0, Per: time.Second}}},
		},
	}})
	must(t, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{Prefix: redistest.Prefix(t)})
	must(t, err)
	return queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
}

// many is n tasks of each scope, in turns, with ids of their own.
func many(name string, n int, scopes ...string) iter.Seq[queue.Entry] {
	return queue.Number(func(yield func(queue.Task) bool) {
		for i := range n {
			for _, scope := range scopes {
				if !yield(queue.Task{Type: "mail", Queue: name, ID: fmt.Sprint(scope, i), Scope: scope}) {
					return
				}
			}
		}
	})
}

// TestForecastSaysWhatEnqueuingSays holds a forecast against the batch itself: the
// same starts, and nothing enqueued by the first of them.
func TestForecastSaysWhatEnqueuingSays(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := planned(t, rdb)
	began := time.Now()
	entries := func(n int) iter.Seq[queue.Entry] { return many(name, n, "p/a", "p/b") }
	if sum, err := client.EnqueueBatch(t.Context(), entries(20), nil); err != nil || sum.Enqueued != 40 { // who waits
		t.Fatalf("%+v %v", sum, err)
	}
	before := rdb.Keys(t.Context(), "*"+name+"*").Val()
	more := func(n int) iter.Seq[queue.Entry] { return many(name, n, "p/a", "p/b", "p/c", "p/off") }
	fresh := func(yield func(queue.Entry) bool) {
		for e := range more(50) {
			e.Task.ID = "more" + e.Task.ID
			if !yield(e) {
				return
			}
		}
	}
	var told, was []queue.Result
	forecast, err := client.Forecast(t.Context(), fresh, func(r queue.Result) { told = append(told, r) })
	must(t, err)
	slices.Sort(before)
	if after := rdb.Keys(t.Context(), "*"+name+"*").Val(); len(after) != len(before) {
		t.Errorf("the forecast wrote: %q, then %q", before, after)
	}
	batch, err := client.EnqueueBatch(t.Context(), fresh, func(r queue.Result) { was = append(was, r) })
	must(t, err)
	passed := time.Since(began)
	if passed > 2*time.Second {
		passed += 250 * time.Millisecond // those who went straight may be forgotten by now
	}
	for i := range told {
		// The pad aside, which is in both, they differ by the time between them.
		off := was[i].Start.Sub(told[i].Start)
		if told[i].State != queue.Valid || told[i].Start.IsZero() != was[i].Start.IsZero() || max(off, -off) > passed+time.Millisecond {
			t.Fatalf("forecast %+v, enqueued %+v, within %s", told[i], was[i], passed)
		}
	}
	want := queue.Binding{Scope: "p/b", Rule: "tenant"}
	for what, sum := range map[string]queue.Summary{"forecast": forecast, "batch": batch} {
		if sum.Untold != 50 || sum.Total() != 200 || sum.Binding.Rule != want.Rule || sum.Binding.Scope == "p/c" {
			t.Errorf("%s: %+v", what, sum)
		}
		// 70 tasks at 10 a second, but for those of the first batch that went straight.
		if left := sum.DoneAt.Sub(began); left < 6*time.Second || left > 7100*time.Millisecond+passed {
			t.Errorf("%s: done in %s", what, left)
		}
	}
}

// TestForecastTellsWhatIsWrong holds that each entry is looked at as enqueuing would.
func TestForecastTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	broken := errors.New("the disk is gone")
	mail := func(id, scope string, cost int64) queue.Entry {
		return queue.Entry{Task: queue.Task{Type: "mail", Queue: name, ID: id, Scope: scope, Cost: cost}}
	}
	entries := []queue.Entry{
		mail("a", "p/a", 1), mail("a", "p/a", 1), mail("", "p/a", 1), mail("", "p/a", 1), mail("b", "q", 1), mail("c", "p/a", 2),
		{Err: &queue.InvalidError{}}, {Task: queue.Task{Type: "mail", Queue: name, ID: "d", Scope: "p/a", Delay: time.Hour}},
	}
	states := ""
	each := func(r queue.Result) { states += string(r.State) + " " }
	began := time.Now()
	sum, err := planned(t, rdb).Forecast(t.Context(), slices.Values(entries), each)
	if states != "valid duplicate valid valid invalid invalid invalid valid " || err != nil {
		t.Errorf("%s %v", states, err)
	}
	if done := sum.DoneAt.Sub(began); sum.Valid != 4 || sum.Random != 2 || sum.Untold != 1 || done < time.Hour || done > time.Hour+time.Minute || sum.Binding != (queue.Binding{}) {
		t.Errorf("%+v", sum)
	}
	if n := rdb.Exists(t.Context(), "asynq:{"+name+"}:pending", "asynq:{"+name+"}:scheduled").Val(); n != 0 {
		t.Error("something was enqueued")
	}
	sum, err = queue.NewClient(rdb, queue.ClientConfig{}).Forecast(t.Context(), slices.Values(entries), nil)
	if (sum != queue.Summary{Valid: 6, Duplicate: 1, Invalid: 1, Random: 2}) || err != nil {
		t.Errorf("without a policy: %+v %v", sum, err)
	}
	entries[1].Err = broken
	if sum, err = planned(t, rdb).Forecast(t.Context(), slices.Values(entries), nil); !errors.Is(err, broken) || sum.Total() != 1 {
		t.Errorf("a source that fails: %+v %v", sum, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = planned(t, rdb).Forecast(ctx, slices.Values(entries), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = gone.Close() })
	if sum, err = planned(t, gone).Forecast(t.Context(), slices.Values(entries), nil); !errors.Is(err, throttle.ErrUnavailable) || sum.Total() != 0 {
		t.Errorf("no Redis: %+v %v", sum, err)
	}
}

// A batch under a monthly limit starts on the first of each month by the clocks of its zone, summer and winter.
func TestForecastMonths(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	limits, err := limitsyaml.Parse("limits.yaml", []byte(
		`limits: {p: {rules: [{name: month, algorithm: calendar, limit: 2, resets: "0 0 1 * *", timezone: Europe/Berlin}]}}`))
	must(t, err)
	rdb := redistest.NewServer(t).Client(t)
	limiter, err := throttle.New(rdb, limits, throttle.Config{})
	must(t, err)
	for range 2 { // this month's
		if d, err := limiter.Allow(t.Context(), "p"); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	var entries []queue.Entry
	for i := range 30 {
		entries = append(entries, queue.Entry{Task: queue.Task{Type: "work", Scope: "p", ID: fmt.Sprint(i)}})
	}
	var starts []time.Time
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	now := time.Now().In(berlin)
	if _, err := client.Forecast(t.Context(), slices.Values(entries), func(r queue.Result) { starts = append(starts, r.Start) }); err != nil {
		t.Fatal(err)
	}
	for i, got := range starts {
		want := time.Date(now.Year(), now.Month()+1+time.Month(i/2), 1, 0, 0, 0, 0, berlin)
		if off := got.Sub(want).Abs(); off > time.Minute {
			t.Errorf("task %d is told to start at %s, want %s", i, got.In(berlin), want)
		}
	}
}
