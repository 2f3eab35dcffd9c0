package queue_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

func TestReadSpec(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		headers map[string]string
		want    queue.Spec
		ok      bool
	}{
		"no headers":      {nil, queue.Spec{}, false},
		"foreign headers": {map[string]string{"trace": "1"}, queue.Spec{}, false},
		"scope alone": {
			map[string]string{"headway-scope": "payments/acme"},
			queue.Spec{Scope: "payments/acme", Cost: 1, Budget: queue.NoBudget}, true,
		},
		"cost by unit": {
			map[string]string{"headway-scope": "a", "headway-cost": "requests=1,tokens=1500"},
			queue.Spec{Scope: "a", Costs: policy.Costs{"requests": 1, "tokens": 1500}, Budget: queue.NoBudget}, true,
		},
		"all": {
			map[string]string{
				"headway-scope": "a", "headway-cost": "7", "headway-max-retry": "0", "headway-id": "i", "trace": "1",
				"headway-deadline": "2030-01-31T12:00:00.000000001Z", "headway-timeout": "1m30s", "headway-priority": "-4",
				"headway-max-wait": "1m0.5s", "headway-due": "2030-01-30T12:00:00.5Z",
			},
			queue.Spec{
				Scope: "a", Cost: 7, Budget: 0, ID: "i", Timeout: 90 * time.Second, Priority: -4,
				Deadline: time.Date(2030, 1, 31, 12, 0, 0, 1, time.UTC),
				MaxWait:  60500 * time.Millisecond, Due: time.Date(2030, 1, 30, 12, 0, 0, 5e8, time.UTC),
			}, true,
		},
	} {
		got, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, tt.headers))
		if !reflect.DeepEqual(got, tt.want) || ok != tt.ok || err != nil {
			t.Errorf("%s: %+v %v %v", name, got, ok, err)
		}
	}
}

// A damaged header is an error that names it, and never a default.
func TestReadSpecDamaged(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		"headway-scope":     {"/", "*", "a//b"},
		"headway-cost":      {"", "0", "-1", "+1", "1.0", "1e3", " 1", "x", "1000000000001", "99999999999999999999"},
		"headway-max-retry": {"", "-1", "x", "1000001"},
		"headway-deadline":  {"", "tomorrow", "2030-01-31"},
		"headway-timeout":   {"", "0s", "-1s", "5", "1ns", "99999h"},
		"headway-max-wait":  {"", "0s", "-1s", "5", "1ns", "99999h"},
		"headway-due":       {"", "now", "1767225600"},
		"headway-priority":  {"", "1.5", "99999999"},
	} {
		for _, value := range values {
			headers := map[string]string{"headway-scope": "a"}
			headers[name] = value
			_, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, headers))
			he, damaged := errors.AsType[*queue.HeaderError](err)
			if ok || !damaged || he.Header != name || he.Value != value || he.Error() == "" {
				t.Errorf("%s %q: %v %v", name, value, ok, err)
			}
		}
	}
	http := asynq.NewTaskWithHeaders("http", nil, map[string]string{"headway-scope": "a", "headway-cost": "requests=0,tokens=1"})
	if _, ok, err := queue.ReadSpec(http); ok || err == nil || !strings.Contains(err.Error(), `0 requests; a task of type "http" sends one`) {
		t.Errorf("a request that costs none: %v %v", ok, err)
	}
	for _, name := range []string{"headway-cost", "headway-id", "headway-max-retry"} {
		_, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, map[string]string{name: "1"}))
		if he, damaged := errors.AsType[*queue.HeaderError](err); ok || !damaged || he.Header != "headway-scope" {
			t.Errorf("%s without a scope: %v %v", name, ok, err)
		}
	}
}

// "Tasks carry it in HeaderApp", 128 bytes of it, whatever characters it has. A header of another program is no fault, and needs no scope.
func TestClientApp(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	for app, want := range map[string]string{
		"": "", "shop": "shop", "a b/c:d %\n": "a b/c:d %\n", "\xff": "\uFFFD", strings.Repeat("x", 127) + "é": strings.Repeat("x", 127), strings.Repeat("/", 200): strings.Repeat("/", 128),
	} {
		r, err := queue.NewClient(rdb, queue.ClientConfig{App: app}).Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p"})
		must(t, err)
		headers := info(t, rdb, "default", r.ID).Headers
		text, has := headers[queue.HeaderApp]
		if got := queue.EnqueuedBy(asynq.NewTaskWithHeaders("t", nil, headers)); got != want || has != (app != "") || len(text) > 3*128 {
			t.Errorf("%q: got %q of %q, want %q", app, got, text, want)
		}
	}
	for text, want := range map[string]string{"100%": "100%", strings.Repeat("y", 1<<20): strings.Repeat("y", 128), "": ""} {
		task := asynq.NewTaskWithHeaders("t", nil, map[string]string{queue.HeaderApp: text})
		_, found, err := queue.ReadSpec(task)
		if got := queue.EnqueuedBy(task); got != want || found || err != nil {
			t.Errorf("%.20q: got %.200q, %t, %v", text, got, found, err)
		}
	}
}

func TestPublishedPolicy(t *testing.T) {
	t.Parallel()
	rdb, p := redistest.NewServer(t).Client(t), policy.PerSecond("a", 4)
	if p, err := queue.PublishedPolicy(t.Context(), rdb); p != nil || err != nil {
		t.Fatalf("before: %v %v", p, err)
	}
	_, _, err := policystore.New(rdb, policystore.Config{}).PublishFile(t.Context(), "worker", p, false)
	must(t, err)
	got, err := queue.PublishedPolicy(t.Context(), rdb)
	if err != nil || string(limitsyaml.Format(got)) != string(limitsyaml.Format(p)) {
		t.Errorf("got %s %v, want %s", limitsyaml.Format(got), err, limitsyaml.Format(p))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := queue.PublishedPolicy(ended, rdb); err != context.Canceled { //nolint:errorlint // exactly this one
		t.Errorf("cancelled: %v", err)
	}
	rdb.HSet(t.Context(), "hw:limits", "version", "x")
	if _, err := queue.PublishedPolicy(t.Context(), rdb); !errors.As(err, new(*policystore.DamagedError)) {
		t.Errorf("damaged: %v", err)
	}
}

// seen counts the calls of an OnEnqueue by id, and has the results that its functions got.
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
			t.Errorf("%+v %v, and OnEnqueue got %+v", got, err, s.done)
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

// "The returned function … is called once with the task's Result", also if the batch could not send it. The source waits for the first
// result before it gives the next task: a batch sends what it has.
func TestOnEnqueueOfATaskThatIsNotSent(t *testing.T) {
	t.Parallel()
	full := redistest.NewServer(t, redistest.Options{Args: []string{"--maxmemory", "1"}}).Client(t)
	var s seen
	client := queue.NewClient(full, queue.ClientConfig{OnEnqueue: s.onEnqueue})
	failed := make(chan queue.Result)
	_, err := client.EnqueueBatch(t.Context(), func(yield func(queue.Entry) bool) {
		for e := range many("default", 2, "a") {
			if !yield(e) || e.Line == 1 && (<-failed).State != queue.Failed {
				return
			}
		}
	}, func(r queue.Result) { failed <- r })
	for _, id := range wantIDs(2) {
		if s.began[id] != 1 || len(s.done[id]) != 1 || s.done[id][0].State != queue.Failed || err == nil {
			t.Errorf("%s: begun %d times, with the results %+v, %v", id, s.began[id], s.done[id], err)
		}
	}
}

// "With it, a task that waits also carries HeaderExpected and HeaderWaitsFor."
func TestOnEnqueueOfTasksThatWait(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	limiter := limited(t, rdb, name, "limits: {p: {rules: [{name: limit, algorithm: sliding-window, limit: 1, per: 1s}]}}")
	var s seen
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, OnEnqueue: s.onEnqueue})
	waits := map[int64]bool{}
	var results []queue.Result
	sum, err := client.EnqueueBatch(t.Context(), many(name, 5, "p/a"), func(r queue.Result) { results = append(results, r) })
	for _, r := range results {
		if s.began[r.ID] != 1 || len(s.done[r.ID]) != 1 {
			t.Errorf("%s: begun %d times, with the results %+v", r.ID, s.began[r.ID], s.done[r.ID])
		}
		got, is := queue.ReadPlannedWait(asynq.NewTaskWithHeaders("mail", nil, info(t, rdb, name, r.ID).Headers))
		want := queue.PlannedWait{Ahead: -1}
		if r.Waits {
			waits[r.Ahead] = true
			want = queue.PlannedWait{Ahead: r.Ahead, Start: r.Start.UTC()}
		}
		if r.Ahead > 0 { // the first waits for no rule
			want.Rule, want.Level = "p:limit", "p"
		}
		if is != r.Waits || got != want || !r.Waits && (r.Ahead != 0 || r.WaitsFor != nil) {
			t.Errorf("%s: %+v, want %+v, for %+v", r.ID, got, want, r)
		}
	}
	if err != nil || sum.Enqueued != 5 || !waits[0] || !waits[1] || !waits[2] {
		t.Errorf("%+v %v, with so many before them: %v", sum, err, waits)
	}
	plain := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	_, err = plain.EnqueueBatch(t.Context(), many(name, 5, "p/a"), func(r queue.Result) {
		if r.State != queue.Duplicate || r.Waits || !r.Start.IsZero() || r.Ahead != 0 || r.WaitsFor != nil {
			t.Errorf("a task that was there: %+v", r)
		}
	})
	must(t, err)
	got, err := plain.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "p/a", Queue: name, ID: "untraced"})
	headers := info(t, rdb, name, "untraced").Headers
	if err != nil || !got.Waits || headers[queue.HeaderExpected] != "" || headers[queue.HeaderWaitsFor] != "" {
		t.Errorf("without an OnEnqueue: %+v %v, %q", got, err, headers)
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
