package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/events"
	"github.com/headway-go/headway/worker/internal/dispatch"
	"github.com/headway-go/headway/worker/metrics"
)

// What the limiter decides reaches the metrics, with the trace of its request, and the events: each decision once.
func TestDecisionsReachMetricsAndEvents(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	type key struct{}
	var got reported
	limits, err := New(redistest.NewServer(t).Client(t), Config{
		Limits: policy.PerHour("p", 2), App: "shop", Events: &events.Config{OnEvent: got.onEvent, Thresholds: []int{50, 100}},
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Summary: -1,
		TraceID: func(ctx context.Context) string { id, _ := ctx.Value(key{}).(string); return id },
	})
	must(t, err)
	must(t, limits.Begin(t.Context()))
	t.Cleanup(limits.End)
	traced := context.WithValue(t.Context(), key{}, trace)
	for range 3 {
		if _, err := limits.Limiter().Allow(traced, "p"); err != nil {
			t.Fatal(err)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	limits.MetricsHandler().ServeHTTP(w, r)
	has := func(want ...string) bool {
		for line := range strings.SplitSeq(w.Body.String(), "\n") {
			found := true
			for _, part := range want {
				found = found && strings.Contains(line, part)
			}
			if found {
				return true
			}
		}
		return false
	}
	if !has("headway_decisions_total{", "allowed", " 2.0") || !has("headway_decisions_total{", "denied", " 1.0") {
		t.Errorf("three decisions, two of them allowed:\n%s", w.Body)
	}
	if !has("headway_wait_seconds_bucket", trace) {
		t.Errorf("the wait lacks its trace:\n%s", w.Body)
	}
	redistest.WaitFor(t, "the thresholds", bound, func() bool { return len(got.percents()) == 2 })

	// Decisions without a context reach both too.
	rules := []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Scope: "q", Rule: "r", Pattern: "q", Limit: 10, Window: time.Hour}, Limited: true}}
	(deciding{limits.metrics, limits.events}).Decided(throttle.Decision{Rules: rules, Binding: 0}, time.Millisecond, nil)
	redistest.WaitFor(t, "the threshold of another rule", bound, func() bool { return got.has(events.Threshold, "q") })
	w = httptest.NewRecorder()
	limits.MetricsHandler().ServeHTTP(w, r)
	if !has("headway_decisions_total{", "q:r", " 1.0") {
		t.Errorf("the metrics lack a decision:\n%s", w.Body)
	}
}

var _ ContextObserver = (*metrics.Metrics)(nil)

// "Runnable are the tasks that could start now had they a worker": those in pending, and those that wait while their rules have
// room. Limited tasks are not among them.
func TestSnapshotRunnable(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: time.Hour}}, MiddlewareConfig{})
	s.throttle.Config(asynq.Config{Concurrency: 4})
	client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.throttle.cfg.Limiter})
	began, limiter := time.Now(), s.throttle.cfg.Limiter
	for range 5 {
		if d, err := limiter.Allow(t.Context(), "p"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for n := range 20 {
		if _, err := client.Enqueue(t.Context(), queue.Task{Type: "any", Scope: "p", ID: fmt.Sprint(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := s.client.Enqueue(asynq.NewTask("any", nil), asynq.Queue("low")); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func() metrics.Snapshot {
		t.Helper()
		got, err := s.throttle.Snapshot(t.Context())
		must(t, err)
		return got
	}
	got := snapshot()
	if r := got.Survey.Rules[0]; r.Used != 5 || r.Waiting != 20 || len(got.Queues) != 2 || got.Queues[0] != (metrics.QueueTasks{Name: "default"}) || got.Queues[1].Runnable != 3 {
		t.Errorf("all of default wait: %+v, %+v", r, got.Queues)
	}
	more, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 8, Per: time.Hour}}}})
	must(t, err)
	limiter.SetPolicy(more)
	if got = snapshot(); got.Queues[0].Runnable != 3 || got.UsefulWorkers != 3./4 { // this process serves default alone
		t.Errorf("three have room: %+v, %v useful workers", got.Queues, got.UsefulWorkers)
	}
	if since := got.Oldest[0].Sub(began); since < -time.Second || since > bound {
		t.Errorf("the oldest wait began at %v, %v", got.Oldest[0], began)
	}
	must(t, s.inspector.PauseQueue("low"))
	if got = snapshot(); got.Queues[1].Runnable != 0 {
		t.Errorf("a paused queue: %+v", got.Queues)
	}
}

// The log has a line each half a minute, or what else is asked for, with what tasks have done, and none where nothing happened.
func TestSummary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log says
		var s summary
		asked := 0
		ctx, stop := context.WithCancel(t.Context())
		go s.run(ctx, 30*time.Second, logTo(&log), func(context.Context) (int64, error) {
			if asked++; asked > 1 {
				return 0, errors.ErrUnsupported
			}
			return 7, nil
		})
		<-time.After(5 * time.Minute)
		if log.times("\n") != 0 || asked != 0 {
			t.Errorf("nothing happened, and the log is %s", log.b.String())
		}
		for range 3 {
			s.PickedUp("q")
		}
		s.Ran("q", "ok", time.Second)
		s.Ran("q", "failed", time.Second)
		s.Rescheduled("q", time.Second)
		<-time.After(90 * time.Second)
		synctest.Wait()
		if log.times(`level=INFO msg="task counts" in=30s picked_up=3 ran=2 failed=1 put_back=1 waiting=7`) != 1 || log.times("\n") != 1 {
			t.Errorf("the log is %s", log.b.String())
		}
		s.PickedUp("q")
		<-time.After(time.Minute)
		synctest.Wait()
		if log.times("picked_up=1 ran=0 failed=0 put_back=0\n") != 1 {
			t.Errorf("where Redis does not say how many wait the log is %s", log.b.String())
		}
		stop()
	})
}

// waiting counts what waits in the queues of all servers of a process.
func TestSummaryCountsWhatWaits(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	limits, err := New(rdb, Config{Limits: new(policy.Policy), Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	limits.NewServer(asynq.Config{Queues: map[string]int{"a": 1, "b": 1}})
	limits.NewServer(asynq.Config{})
	client := asynq.NewClientFromRedisClient(rdb)
	for name, opts := range map[string][]asynq.Option{"a": {asynq.ProcessIn(time.Hour)}, "b": nil, queue.DefaultQueue: nil, "other": nil} {
		if _, err := client.Enqueue(asynq.NewTask("x", nil), append(opts, asynq.Queue(name))...); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := limits.waiting(t.Context()); n != 3 || err != nil {
		t.Errorf("%d wait, %v", n, err)
	}
}

// Failures are logged with the task's id and scope: for good as errors, and of those tried again one a minute of a scope. No user or
// query of a URL comes into the log.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log says
		heard := 0
		l := &Limits{log: logTo(&log), Middleware: &Middleware{dispatcher: new(dispatch.Dispatcher), cfg: MiddlewareConfig{Spends: func(task *asynq.Task) (string, int64) { return task.Type() + "/acme", 0 }}}}
		handler := l.logFailures(asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { heard++ }))
		fail := func(kind string, err error) { handler.HandleError(t.Context(), asynq.NewTask(kind, nil), err) }
		secret := errors.New(`Get "https://user:hunter2@api.example.com/v1/mail?key=hunter2": EOF`)
		fail("mail", fmt.Errorf("%w: %w", secret, asynq.SkipRetry))
		fail("mail", asynq.RevokeTask)
		if log.times(`level=ERROR msg="task failed and is archived"`) != 1 || log.times("scope=mail/acme") != 1 || log.times("api.example.com/v1/mail?…") != 1 {
			t.Errorf("the log is %s", log.b.String())
		}
		if strings.Contains(log.b.String(), "hunter2") {
			t.Errorf("a secret is in the log: %s", log.b.String())
		}
		if heard != 2 {
			t.Errorf("the program's own handler heard of %d", heard)
		}
	})
}

// Where rules count tokens and Spends gives tasks no costs by unit, New's start warns: no such rule would limit them.
func TestUnitsThatSpendsDoesNotCost(t *testing.T) {
	t.Parallel()
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"llm": {Rules: []policy.Rule{
		{Name: "tokens", Algorithm: policy.TokenBucket, Limit: 9, Per: time.Second, Burst: 9, Unit: "tokens"},
	}}})
	must(t, err)
	for name, costs := range map[string]func(*asynq.Task) policy.Costs{"none": nil, "some": func(*asynq.Task) policy.Costs { return nil }} {
		var log says
		limits, err := New(redistest.NewServer(t).Client(t), Config{Limits: p, Registerer: prometheus.NewRegistry(), Logger: logTo(&log), Spends: spendsMail, Costs: costs})
		if err == nil {
			err = limits.Settle(t.Context())
		}
		if warned := log.times("Config.Costs is nil") == 1 && log.times("scope=llm rule=tokens unit=tokens") == 1; err != nil || warned != (costs == nil) {
			t.Errorf("Costs are %s: %v, and the log is %s", name, err, bytes.TrimSpace(log.b.Bytes()))
		}
	}
}

// spendings is a Usage that remembers.
type spendings struct {
	mu  sync.Mutex
	all []string
}

func (s *spendings) Spent(scope string, by usage.By, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, fmt.Sprintf("%s %q %s %s %d", scope, by.App, by.Queue, by.Type, units))
}

// apart is one that is told units as well.
type apart struct{ spendings }

func (a *apart) SpentCosts(scope string, by usage.By, costs policy.Costs) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, fmt.Sprintf("%s %s %s %s", scope, by.Queue, by.Type, costs))
}

// enqueuers is a Usage that remembers who enqueued.
type enqueuers struct{ spendings }

func (e *enqueuers) Spent(scope string, by usage.By, units int64) {
	by.App = by.EnqueuedBy
	e.spendings.Spent(scope, by, units)
}

// What a task spends is told with the application that enqueued it, where the task says so.
func TestEnqueuedBy(t *testing.T) {
	t.Parallel()
	told := &enqueuers{}
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{Usage: told})
	s.add(queue.Task{ID: "none"})
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{App: "web/shop é"})
	s.add(queue.Task{ID: "ours"})
	task := asynq.NewTaskWithHeaders("work", []byte(`{"id":"foreign"}`), map[string]string{queue.HeaderScope: "p/a", queue.HeaderApp: "crm"})
	if _, err := s.client.EnqueueContext(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	s.serve(asynq.Config{}, nil)
	for range 3 {
		<-s.ended
	}
	told.want(t, `p/a "" default work 1`, `p/a "web/shop é" default work 1`, `p/a "crm" default work 1`)
}

// corrected is one that is told what runs come to.
type corrected struct{ apart }

func (c *corrected) Settled(scope string, by usage.By, more policy.Costs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf("settled %s %s %s %s", scope, by.Queue, by.Type, more))
}

// "What a handler settles corrects them when it does": by what it is more or less than what
// was told last, and what could not be settled is not told.
func TestSettledIsTold(t *testing.T) {
	t.Parallel()
	told := &corrected{}
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{Usage: told})
	s.add(queue.Task{ID: "plain", Type: "plain", Cost: 4})
	s.add(queue.Task{ID: "a", Costs: policy.Costs{"tokens": 500}})
	s.serve(asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "plain" {
			_, err := Settle(ctx, policy.Costs{"requests": 2, "rows": 7})
			return err
		}
		for _, costs := range []policy.Costs{{"tokens": 90}, {"requests": 1, "tokens": 90}, {"tokens": 100}} {
			if _, err := Settle(ctx, costs); err != nil {
				t.Error(err)
			}
		}
		if _, err := Settle(ctx, policy.Costs{"tokens": -1}); err == nil {
			t.Error("less than nothing was settled")
		}
		return nil
	})
	for range 2 {
		<-s.ended
	}
	told.want(t, `p/a "" default plain 4`, "settled p/a default plain requests=-2,rows=7",
		"p/a default work tokens=500", "settled p/a default work tokens=-410", "settled p/a default work tokens=10")
}

// want holds what was told against what shall have been, in any order.
func (s *spendings) want(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.all)
	slices.Sort(want)
	if !slices.Equal(s.all, want) {
		t.Errorf("got %q, want %q", s.all, want)
	}
}

// "A task counts once, when it starts, with the units that it costs; one that waits
// spends nothing."
func TestSpent(t *testing.T) {
	t.Parallel()
	told := &spendings{}
	s := newSystem(t, perHour(9), MiddlewareConfig{Usage: told, Spends: func(task *asynq.Task) (string, int64) {
		if task.Type() == "free" {
			return Unlimited, 0
		}
		return "p/foreign", 2
	}})
	for _, task := range []queue.Task{
		{ID: "dear", Cost: 4}, {ID: "plain", Type: "other"}, {ID: "below", Scope: "p/a/b"},
	} {
		s.add(task)
	}
	s.addForeign("headers")
	for _, kind := range []string{"free", "told"} {
		if _, err := s.client.EnqueueContext(t.Context(), asynq.NewTask(kind, nil), asynq.TaskID(kind)); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(asynq.Config{}, nil)
	for range 6 {
		<-s.ended
	}
	s.add(queue.Task{ID: "waits"})
	s.until("one waits", func() bool {
		info := s.info("waits")
		return info != nil && info.State == asynq.TaskStateRetry
	})
	told.want(t, `p/a "" default work 4`, `p/a "" default other 1`, `p/a/b "" default work 1`, `p/a "" default work 1`, `p/foreign "" default told 2`)
}

// reported are the events of a process.
type reported struct {
	mu   sync.Mutex
	list []events.Event
}

func (r *reported) onEvent(e events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *reported) has(kind events.Kind, scope string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if e.Kind == kind && e.Scope == scope && e.App == "shop" {
			return true
		}
	}
	return false
}

func (r *reported) percents() (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		list = append(list, e.Percent)
	}
	return list
}

// And what polls say: a process that has ceased to dispatch.
func TestEventsOfTheDispatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait)
		var got reported
		limits, err := New(rdb, Config{
			Limits: policy.PerHour("p", 2), App: "shop", Events: &events.Config{OnEvent: got.onEvent},
			Logger: slog.New(slog.DiscardHandler), NoMetrics: true,
		})
		must(t, err)
		must(t, limits.Begin(t.Context()))
		defer limits.End()
		limits.observer.DispatcherPolled("p", "p", true)
		<-time.After(13 * time.Second)
		if !got.has(events.Stalled, "") {
			t.Errorf("%+v", got.list)
		}
	})
}
