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

// A capped task is planned behind those of its scope that came before it, and its result has the start that follows.
func TestPlannedUnderMaxPriority(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	for most, least := range map[int]time.Duration{0: 8 * time.Second, 1: 0} {
		policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Rules:  []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Second}},
			Scopes: map[string]policy.ScopeConfig{"*": {MaxPriority: &most}},
		}})
		must(t, err)
		prefix := fmt.Sprint(name, most)
		limiter, err := throttle.New(rdb, policy, throttle.Config{Prefix: prefix})
		must(t, err)
		client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
		began := time.Now()
		if sum, err := client.EnqueueBatch(t.Context(), many(prefix, 10, "p/a"), nil); err != nil || sum.Enqueued != 10 {
			t.Fatalf("%+v, %v", sum, err)
		}
		got, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Queue: prefix, ID: "urgent", Scope: "p/a", Priority: 1000000})
		// One starts each second. The first went straight, and nine wait. Uncapped it is the next of them.
		late := time.Since(began)
		if in := got.Start.Sub(began); err != nil || !got.Waits || in < least || in > least+4*time.Second+late {
			t.Errorf("max_priority %d: %+v, %v: it starts in %s", most, got, err, in)
		}
	}
}

// What several workers serve counts together: the largest weight of each queue, strictly where
// all say so. A worker of one queue says nothing.
func TestWeightsTogether(t *testing.T) {
	t.Parallel()
	first, second := queue.NewWeights(map[string]int{"a": 4, "b": 1}, true), queue.NewWeights(map[string]int{"b": 2, "c": 1}, true)
	alone, shares := queue.NewWeights(map[string]int{"c": 9}, false), queue.NewWeights(map[string]int{"c": 1, "d": 1}, false)
	for _, tt := range []struct {
		all  []queue.Weights
		want string
	}{
		{[]queue.Weights{first, second, alone}, "a 0, b -1, c -2, "},
		{[]queue.Weights{first, second, shares}, "a 0 a 1, b 0 b 2, c 0 c 4, d 0 d 4, "},
		{[]queue.Weights{alone}, "c 0, "},
	} {
		got, w := "", queue.Together(tt.all...)
		for _, name := range []string{"a", "b", "c", "d"} {
			if priority, lane, stride := w.Rank(name, 0); lane != "" {
				got += fmt.Sprintf("%s %d %s %d, ", name, priority, lane, stride)
			} else if len(tt.all) > 1 && name != "d" || name == "c" {
				got += fmt.Sprintf("%s %d, ", name, priority)
			}
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// A program that enqueues goes by the workers' weights, and reads them seldom.
func TestClientLearnsWeights(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	policy, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour},
	}}})
	must(t, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	weights := map[string]int{"critical": 6, "default": 3, "low": 1}
	for name, test := range map[string]struct {
		cfg   queue.ClientConfig
		reads int
	}{
		"learned": {queue.ClientConfig{Limiter: limiter}, 1},
		"told":    {queue.ClientConfig{Limiter: limiter, Queues: weights}, 0},
	} {
		if _, err := queue.PublishWeights(t.Context(), rdb, queue.NewWeights(weights, false)); err != nil {
			t.Fatal(err)
		}
		client := queue.NewClient(rdb, test.cfg)
		add := func(of string, n int) {
			for i := range n {
				if _, err := client.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/" + name, Queue: of, ID: fmt.Sprintf("%s%02d", of, i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := limiter.Allow(t.Context(), "p/"+name); err != nil {
			t.Fatal(err)
		}
		got := redistest.Commands(t, rdb, func() { add("low", 5); add("critical", 12) })
		if got["zrevrange"] != test.reads {
			t.Errorf("%s: weights were read %d times: %v", name, got["zrevrange"], got)
		}
		line := rdb.ZRange(t.Context(), "hw:{p}/"+name+"!queue", 0, -1).Val()
		of := map[string]int{}
		for _, ticket := range line[:min(7, len(line))] {
			name, _, _ := queue.ReadTicket(ticket[1:])
			of[name]++
		}
		if of["critical"] < 5 {
			t.Errorf("%s: of the first 7 in line are %v", name, of)
		}
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
