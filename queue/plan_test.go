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
	"github.com/headway-go/headway/throttle/upstream"
)

// limited returns a limiter under the limits of a file.
func limited(t *testing.T, rdb redis.UniversalClient, prefix, limits string) *throttle.Limiter {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	limiter, err := throttle.New(rdb, p, throttle.Config{Prefix: prefix})
	must(t, err)
	return limiter
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

// A forecast checks each entry as EnqueueBatch does, and enqueues nothing.
func TestForecastChecksEntries(t *testing.T) {
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
	forecast := func(ctx context.Context, rdb redis.UniversalClient) (states string, sum queue.Summary, err error) {
		const limits = "limits: {p: {rules: [{name: account, algorithm: sliding-window, limit: 100, per: 1s}], " +
			"scopes: {'*': {rules: [{name: tenant, algorithm: token-bucket, limit: 10, per: 1s}]}}}}"
		client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limited(t, rdb, redistest.Prefix(t), limits)})
		sum, err = client.Forecast(ctx, slices.Values(entries), func(r queue.Result) { states += string(r.State) + " " })
		return states, sum, err
	}
	began := time.Now()
	states, sum, err := forecast(t.Context(), rdb)
	if done := sum.DoneAt.Sub(began); states != "valid duplicate valid valid invalid invalid invalid valid " || err != nil ||
		sum.Valid != 4 || sum.Random != 2 || sum.UnknownStarts != 1 || done < time.Hour || done > time.Hour+time.Minute || sum.Binding != (queue.Binding{}) {
		t.Errorf("%s: %+v %v", states, sum, err)
	}
	if n := rdb.Exists(t.Context(), "asynq:{"+name+"}:pending", "asynq:{"+name+"}:scheduled").Val(); n != 0 {
		t.Error("something was enqueued")
	}
	sum, err = queue.NewClient(rdb, queue.ClientConfig{}).Forecast(t.Context(), slices.Values(entries), nil)
	if (sum != queue.Summary{Valid: 6, Duplicate: 1, Invalid: 1, Random: 2}) || err != nil {
		t.Errorf("without a policy: %+v %v", sum, err)
	}
	entries[1].Err = broken
	if _, sum, err = forecast(t.Context(), rdb); !errors.Is(err, broken) || sum.Total() != 1 {
		t.Errorf("a source that fails: %+v %v", sum, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err = forecast(ctx, rdb); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = gone.Close() })
	if _, sum, err = forecast(t.Context(), gone); !errors.Is(err, throttle.ErrUnavailable) || sum.Total() != 0 {
		t.Errorf("no Redis: %+v %v", sum, err)
	}
}

// A batch under a monthly limit starts on the first of each month by the clocks of its zone, summer and winter.
func TestForecastMonths(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	limiter := limited(t, rdb, prefix,
		`limits: {p: {rules: [{name: month, algorithm: calendar, limit: 2, resets: "0 0 1 * *", timezone: Europe/Berlin}]}}`)
	for range 2 { // this month's
		_, err := limiter.Allow(t.Context(), "p")
		must(t, err)
	}
	var starts []time.Time
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	now := time.Now().In(berlin)
	_, err = client.Forecast(t.Context(), many(prefix, 30, "p"), func(r queue.Result) { starts = append(starts, r.Start) })
	must(t, err)
	for i, got := range starts {
		want := time.Date(now.Year(), now.Month()+1+time.Month(i/2), 1, 0, 0, 0, 0, berlin)
		if off := got.Sub(want).Abs(); off > time.Minute {
			t.Errorf("task %d is expected at %s, want %s", i, got.In(berlin), want)
		}
	}
}

// A forecast says what each start waits for, or why it is unknown.
func TestForecastReasons(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	limiter := limited(t, rdb, prefix, `limits:
  rate: {rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1m}]}
  off: {rules: [{name: r, algorithm: token-bucket, limit: 0, per: 1m}]}
  none: {rules: [{name: c, algorithm: concurrency, limit: 0}, {name: r, algorithm: token-bucket, limit: 1, per: 1m}]}
  runs: {rules: [{name: c, algorithm: concurrency, limit: 1}]}
  new: {rules: [{name: c, algorithm: concurrency, limit: 1}]}
  held: {paused: true, rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1m}]}
  api: {rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 100}]}
`)
	must(t, rdb.Set(t.Context(), prefix+":{runs}:t::c", "100 60000000 1000000", 0).Err())
	_, err := limiter.Report(t.Context(), "api/a", upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true})
	must(t, err)
	for _, test := range []struct {
		scope string
		delay time.Duration
		want  queue.Reason // of the second task
		by    string
		known bool
		least time.Duration
	}{
		{"rate", 0, queue.ReasonRule, "rate r", true, 50 * time.Second},
		{"rate", time.Second, queue.ReasonDelay, "", false, 0},
		{"off", 0, queue.ReasonSuspended, "off r", false, 0},
		{"none", 0, queue.ReasonSuspended, "none c", false, 0},
		{"runs", 0, queue.ReasonRun, "runs c", true, 20 * time.Second},
		{"new", 0, queue.ReasonRun, "new c", false, 0},
		{"held", 0, queue.ReasonPaused, "the pause of held", false, 0},
		{"api/a", 0, queue.ReasonUpstream, "the pause of api/a", true, 59 * time.Minute},
		{"api/a/b", 0, queue.ReasonUpstream, "the pause of api/a/b", true, 59 * time.Minute},
		{"api/c", 0, "", "", true, 0},
	} {
		var got []queue.Result
		one := queue.Entry{Task: queue.Task{Type: "x", Scope: test.scope, Delay: test.delay}}
		client, now := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter}), time.Now()
		sum, err := client.Forecast(t.Context(), slices.Values([]queue.Entry{one, one}), func(r queue.Result) { got = append(got, r) })
		if err != nil || len(got) != 2 || got[1].Err != nil {
			t.Fatalf("%s: %+v, %v", test.scope, got, err)
		}
		second, by := got[1], ""
		if second.Binding != (queue.Binding{}) {
			by = second.Binding.String()
		}
		if second.Reason != test.want || by != test.by || second.Start.IsZero() == test.known {
			t.Errorf("%s: it waits for %q of %q until %s; want %q of %q", test.scope, second.Reason, by, second.Start, test.want, test.by)
		}
		if test.known && second.Start.Sub(now) < test.least {
			t.Errorf("%s: it starts in %s", test.scope, second.Start.Sub(now))
		}
		ranged := test.want == queue.ReasonRun && test.known
		if ranged != !second.StartTo.IsZero() || ranged != !sum.DoneTo.IsZero() || ranged && !second.StartFrom.Before(second.StartTo) {
			t.Errorf("%s: between %s and %s, all %s and %s", test.scope, second.StartFrom, second.StartTo, sum.DoneFrom, sum.DoneTo)
		}
	}
}
