package queue_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// seen are the results that an OnEnqueue was told, and how often by id.
type seen struct {
	mu    sync.Mutex
	began map[string]int
	done  map[string][]queue.Result
}

func (s *seen) onEnqueue(_ context.Context, task queue.Task) (map[string]string, func(queue.Result)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began == nil {
		s.began, s.done = map[string]int{}, map[string][]queue.Result{}
	}
	s.began[task.ID]++
	headers := map[string]string{"traceparent": "of " + task.ID, queue.HeaderScope: "stolen"}
	return headers, func(r queue.Result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done[task.ID] = append(s.done[task.ID], r)
	}
}

// once fails unless each task that was begun has one result.
func (s *seen) once(t *testing.T) {
	t.Helper()
	for id, n := range s.began {
		if n != 1 || len(s.done[id]) != 1 {
			t.Errorf("%s: begun %d times, with the results %+v", id, n, s.done[id])
		}
	}
}

// "The returned headers are added to the task's. … Names that begin with "headway-" are left out."
func TestOnEnqueue(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	var s seen
	client := queue.NewClient(rdb, queue.ClientConfig{OnEnqueue: s.onEnqueue})
	task := queue.Task{Type: "mail", Scope: "a", Queue: name, ID: "one"}
	for _, want := range []queue.State{queue.Enqueued, queue.Duplicate} {
		clear(s.done)
		got, err := client.Enqueue(t.Context(), task)
		if err != nil || got.State != want || len(s.done["one"]) != 1 || s.done["one"][0].State != want {
			t.Errorf("%+v %v, told %+v", got, err, s.done)
		}
	}
	headers := info(t, rdb, name, "one").Headers
	if headers["traceparent"] != "of one" || headers[queue.HeaderScope] != "a" || headers[queue.HeaderExpected] != "" {
		t.Errorf("headers %q", headers)
	}
	clear(s.began)
	if _, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Queue: name}); err == nil || len(s.began) != 0 {
		t.Errorf("it was called for a task that is refused: %v", s.began)
	}
}

// "With an OnEnqueue, a task that waits for its limits also carries HeaderExpected and HeaderWaitsFor."
func TestOnEnqueueOfTasksThatWait(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	limiter, err := throttle.New(rdb, policy.PerSecond("p", 1), throttle.Config{Prefix: name})
	must(t, err)
	var s seen
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, OnEnqueue: s.onEnqueue})
	results := map[string]queue.Result{}
	if _, err := client.EnqueueBatch(t.Context(), many(name, 5, "p/a"), func(r queue.Result) { results[r.ID] = r }); err != nil {
		t.Fatal(err)
	}
	s.once(t)
	waits := map[int64]bool{}
	for id, r := range results {
		headers := info(t, rdb, name, id).Headers
		text := headers[queue.HeaderExpected]
		if !r.Waits {
			if text != "" || headers[queue.HeaderWaitsFor] != "" || r.Ahead != 0 || r.WaitsFor != nil {
				t.Errorf("%s does not wait: %q, %+v", id, headers, r)
			}
			continue
		}
		waits[r.Ahead] = true
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || !at.Equal(r.Start) {
			t.Errorf("%s: %q, want %s", id, text, r.Start)
		}
		planned, is := queue.ReadPlannedWait(asynq.NewTaskWithHeaders("mail", nil, headers))
		if want := (queue.PlannedWait{Ahead: r.Ahead, Rule: "p:limit", Level: "p", Start: r.Start.UTC()}); !is || planned != want {
			t.Errorf("%s: %+v, want %+v, from %q", id, planned, want, headers)
		}
	}
	for ahead := range int64(3) {
		if !waits[ahead] {
			t.Errorf("none of the tasks that wait has %d before it: %v", ahead, waits)
		}
	}
	plain := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	again := many(name, 5, "p/a")
	if _, err := plain.EnqueueBatch(t.Context(), again, func(r queue.Result) {
		if r.State != queue.Duplicate || r.Waits || !r.Start.IsZero() || r.Ahead != 0 || r.WaitsFor != nil {
			t.Errorf("a task that was there: %+v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
	got, err := plain.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "p/a", Queue: name, ID: "untraced"})
	if err != nil || !got.Waits {
		t.Fatalf("%+v %v", got, err)
	}
	if headers := info(t, rdb, name, "untraced").Headers; headers[queue.HeaderExpected] != "" || headers[queue.HeaderWaitsFor] != "" {
		t.Errorf("without an OnEnqueue: %q", headers)
	}
	if got := maps.Collect(maps.All(s.done)); len(got) != 5 {
		t.Errorf("%d results", len(got))
	}
}

// "Values that this package cannot have written count as absent."
func TestReadPlannedWait(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
	const soon = "2026-03-01T13:00:00.000000005+01:00"
	for name, tt := range map[string]struct {
		expected, waitsFor, scope string
		want                      queue.PlannedWait
		is                        bool
	}{
		"neither":                {"", "", "p/a", queue.PlannedWait{Ahead: -1}, false},
		"the start":              {soon, "", "p/a", queue.PlannedWait{Ahead: -1, Start: at}, true},
		"the place":              {"", "3", "p/a", queue.PlannedWait{Ahead: 3}, true},
		"all":                    {soon, "12 2 p/*:a rule: of mine", "p/a/x", queue.PlannedWait{Ahead: 12, Rule: "p/*:a rule: of mine", Level: "p/a", Start: at}, true},
		"of the outermost level": {"", "0 1 p:r", "p/a", queue.PlannedWait{Rule: "p:r", Level: "p"}, true},
		"a level it has not":     {"", "1 3 p/*:r", "p/a", queue.PlannedWait{Ahead: 1}, true},
		"a level of 0":           {"", "1 0 p/*:r", "p/a", queue.PlannedWait{Ahead: 1}, true},
		"no scope":               {"", "1 1 p:r", "", queue.PlannedWait{Ahead: 1}, true},
		"no level":               {"", "1 p:r", "p/a", queue.PlannedWait{Ahead: 1}, true},
		"before the first":       {"", "-1 1 p:r", "p/a", queue.PlannedWait{Ahead: -1}, false},
		"no number":              {"tomorrow", "many", "p/a", queue.PlannedWait{Ahead: -1}, false},
	} {
		headers := map[string]string{queue.HeaderExpected: tt.expected, queue.HeaderWaitsFor: tt.waitsFor, queue.HeaderScope: tt.scope}
		if got, is := queue.ReadPlannedWait(asynq.NewTaskWithHeaders("mail", nil, headers)); got != tt.want || is != tt.is {
			t.Errorf("%s: %+v %t, want %+v %t", name, got, is, tt.want, tt.is)
		}
	}
}
