package worker

import (
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
	reports, err := events.New(events.Config{OnEvent: got.onEvent, Thresholds: []int{50, 100}})
	must(t, err)
	limits, err := New(redistest.NewServer(t).Client(t), Config{
		Limits: policy.PerHour("p", 2), App: "shop", Events: reports,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Summary: -1,
		TraceID: func(ctx context.Context) string { id, _ := ctx.Value(key{}).(string); return id },
	})
	must(t, err)
	must(t, limits.Begin(t.Context()))
	t.Cleanup(limits.End)
	traced := context.WithValue(t.Context(), key{}, trace)
	for range 3 {
		_, err := limits.Limiter().Allow(traced, "p")
		must(t, err)
	}
	wants := func(lines ...string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		w := httptest.NewRecorder()
		limits.MetricsHandler().ServeHTTP(w, r)
		for _, line := range lines {
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("no %s in\n%s", line, w.Body)
			}
		}
	}
	wants(`headway_decisions_total{outcome="allowed",rule="p:limit"} 2.0`, `headway_decisions_total{outcome="denied",rule="p:limit"} 1.0`, `trace_id="`+trace)
	redistest.WaitFor(t, "the thresholds", bound, func() bool { return got.count(events.Threshold, "p") == 2 })

	// Decisions of requests without a trace reach both too.
	rules := []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Scope: "q", Rule: "r", Pattern: "q", Limit: 10, Window: time.Hour}, Limited: true}}
	(deciding{limits.metrics, reports}).Decided(t.Context(), throttle.Decision{Rules: rules, Binding: 0}, time.Millisecond, nil)
	redistest.WaitFor(t, "the threshold of another rule", bound, func() bool { return got.count(events.Threshold, "q") == 1 })
	wants(`headway_decisions_total{outcome="denied",rule="q:r"} 1.0`)
}

var _ Observer = (*metrics.Metrics)(nil)

// "Runnable are the tasks that could start now had they a worker": those in pending, and those that wait while their rules have
// room. Limited tasks are not among them.
func TestSnapshotRunnable(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: time.Hour}}, MiddlewareConfig{})
	s.throttle.config(asynq.Config{Concurrency: 4}, nil)
	began, limiter := time.Now(), s.throttle.cfg.Limiter
	if d, err := limiter.Decide(t.Context(), throttle.Request{Scope: "p", Cost: 5}); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	s.planned(jobs(20, "p")...)
	for range 3 {
		_, err := s.client.Enqueue(asynq.NewTask("any", nil), asynq.Queue("low"))
		must(t, err)
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
	limiter.SetPolicy(policyOfP(t, []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 8, Per: time.Hour}}))
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
			t.Errorf("nothing happened, and the log is %s", log.String())
		}
		for range 3 {
			s.PickedUp("q")
		}
		s.Ran(t.Context(), "q", "ok", time.Second)
		s.Ran(t.Context(), "q", "failed", time.Second)
		s.Rescheduled("q", time.Second)
		<-time.After(90 * time.Second)
		synctest.Wait()
		if log.times(`level=INFO msg="task counts" in=30s picked_up=3 ran=2 failed=1 put_back=1 waiting=7`) != 1 || log.times("\n") != 1 {
			t.Errorf("the log is %s", log.String())
		}
		s.PickedUp("q")
		<-time.After(time.Minute)
		synctest.Wait()
		if log.times("picked_up=1 ran=0 failed=0 put_back=0\n") != 1 {
			t.Errorf("where Redis does not say how many wait the log is %s", log.String())
		}
		stop()
	})
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
			t.Errorf("the log is %s", log.String())
		}
		if strings.Contains(log.String(), "hunter2") {
			t.Errorf("a secret is in the log: %s", log.String())
		}
		if heard != 2 {
			t.Errorf("the program's own handler heard of %d", heard)
		}
	})
}

// Where rules count tokens and Spends gives tasks no costs by unit, New's start warns: no such rule would limit them.
func TestUnitsThatSpendsDoesNotCost(t *testing.T) {
	t.Parallel()
	p := policyOf(t, map[string]policy.ScopeConfig{"llm": {Rules: tokensPerHour(9)}})
	for name, costs := range map[string]func(*asynq.Task) policy.Costs{"none": nil, "some": func(*asynq.Task) policy.Costs { return nil }} {
		var log says
		limits, err := New(redistest.NewServer(t).Client(t), Config{Limits: p, Registerer: prometheus.NewRegistry(), Logger: logTo(&log), Spends: spendsMail, Costs: costs})
		if err == nil {
			err = limits.Settle(t.Context())
		}
		if warned := log.times("Config.Costs is nil") == 1 && log.times("scope=llm rule=tokens unit=tokens") == 1; err != nil || warned != (costs == nil) {
			t.Errorf("Costs are %s: %v, and the log is %s", name, err, strings.TrimSpace(log.String()))
		}
	}
}

// spendings is a Usage that remembers.
type spendings struct {
	mu  sync.Mutex
	all []string
}

func (s *spendings) Spent(scope string, by usage.By, units int64) {
	s.note("%s%s %q %s %s %d", scope, by.Member, by.EnqueuedBy, by.Queue, by.Type, units)
}

func (s *spendings) SpentCosts(scope string, by usage.By, costs policy.Costs) {
	s.note("%s %s %s %s", scope, by.Queue, by.Type, costs)
}

func (s *spendings) Settled(scope string, by usage.By, more policy.Costs) {
	s.note("settled %s%s %s %s %s", scope, by.Member, by.Queue, by.Type, more)
}

func (s *spendings) Ended(scope string, by usage.By, how usage.Ends) {
	s.note("ended %s%s %+v", scope, by.Member, how)
}

func (s *spendings) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, fmt.Sprintf(format, a...))
}

// "What a handler settles corrects them when it does": by what it is more or less than what
// was told last, and what could not be settled is not told.
func TestSettledIsTold(t *testing.T) {
	t.Parallel()
	told := &spendings{}
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
	s.haveEnded(2)
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

// "A task counts once, when it starts, with the units that it costs", and with the application that enqueued it, where the task says so;
// "one that waits spends nothing."
func TestSpent(t *testing.T) {
	t.Parallel()
	told := &spendings{}
	s := newSystem(t, perHour(11), MiddlewareConfig{Usage: told, Spends: func(task *asynq.Task) (string, int64) {
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
	s.foreign("crm", map[string]string{queue.HeaderScope: "p/a", queue.HeaderApp: "crm"})
	for _, kind := range []string{"free", "told"} {
		_, err := s.client.EnqueueContext(t.Context(), asynq.NewTask(kind, nil), asynq.TaskID(kind))
		must(t, err)
	}
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{App: "web/shop é"})
	s.add(queue.Task{ID: "ours"})
	s.serve(asynq.Config{}, nil)
	s.haveEnded(8)
	s.add(queue.Task{ID: "waits"})
	s.is("waits", asynq.TaskStateRetry)
	told.want(t, `p/a "" default work 4`, `p/a "" default other 1`, `p/a/b "" default work 1`, `p/a "" default work 1`, `p/foreign "" default told 2`,
		`p/a "crm" default work 1`, `p/a "web/shop é" default work 1`)
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

func (r *reported) count(kind events.Kind, scope string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if e.Kind == kind && e.Scope == scope && e.App == "shop" {
			n++
		}
	}
	return n
}

// tracer notes what it was told, by task.
type tracer struct {
	mu    sync.Mutex
	lines map[string][]string
	picks map[string]Pickup // the last of each
}

type tracerKey struct{}

func (r *tracer) note(p Pickup, format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines == nil {
		r.lines, r.picks = map[string][]string{}, map[string]Pickup{}
	}
	r.lines[p.ID] = append(r.lines[p.ID], fmt.Sprintf(format, a...))
	r.picks[p.ID] = p
}

func (r *tracer) of(id string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines[id])
}

func (r *tracer) Starts(ctx context.Context, p Pickup) (context.Context, func(string, error)) {
	r.note(p, "starts %s", p.Scope)
	return context.WithValue(ctx, tracerKey{}, p.ID), func(outcome string, err error) { r.note(p, "%s %v", outcome, err) }
}

func (r *tracer) Waits(_ context.Context, p Pickup) { r.note(p, "waits: %s", p.Reason) }

func (r *tracer) Ends(_ context.Context, p Pickup, err error) { r.note(p, "ends: %v", err) }

// Each pick-up is a run, a wait, or an end without a run, and the run's context is what Starts returned. Usage hears of the ends of runs:
// "Ended reports a run that failed, or that the API refused and that is deferred".
func TestTracer(t *testing.T) {
	t.Parallel()
	var seen tracer
	told := &spendings{}
	rules := []policy.Rule{{Name: "few", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Hour}}
	s := newSystem(t, rules, MiddlewareConfig{Tracer: &seen, Usage: told})
	wrong := errors.New("no such account")
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if got := ctx.Value(tracerKey{}); got != id {
			t.Errorf("%s runs in the context of %v", id, got)
		}
		switch id {
		case "fails":
			return fmt.Errorf("%w: %w", wrong, asynq.SkipRetry)
		case "panics":
			panic("of the handler")
		case "deferred":
			return &RefusedError{Status: 429, RetryAfter: time.Hour, known: true}
		}
		return nil
	})
	wants := func(id string, want ...string) {
		t.Helper()
		redistest.WaitFor(t, "what becomes of "+id, bound, func() bool { return len(seen.of(id)) >= len(want) })
		if got := seen.of(id); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	for _, id := range []string{"runs", "fails", "deferred", "panics"} {
		s.add(queue.Task{ID: id, MaxRetry: queue.Retries(1)})
	}
	wants("runs", "starts p/a", "ok <nil>")
	wants("fails", "starts p/a", "failed no such account: skip retry for the task")
	wants("deferred", "starts p/a", "deferred headway: waiting: p/a")
	wants("panics", "starts p/a", "failed <nil>")
	s.until("all is told", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return len(told.all) == 7
	})
	told.want(t, `p/a "" default work 1`, `p/a "" default work 1`, `p/a "" default work 1`, `p/a "" default work 1`,
		"ended p/a {Failed:1 Refused:0}", "ended p/a {Failed:1 Refused:0}", "ended p/a {Failed:0 Refused:1}")

	s.addForeign("waits")
	wants("waits", "waits: headway: waiting: p/a, rule few")
	p := seen.picks["waits"]
	if rule, _ := p.Decision.BindingRule(); rule.Rule != "few" || p.Ahead != 0 || time.Until(p.Until) < 10*time.Minute || p.Queue != "default" {
		t.Errorf("it waits until %s, by %+v", p.Until, p.Decision)
	}
	s.add(queue.Task{ID: "expired", Deadline: time.Now().Add(10 * time.Minute)})
	redistest.WaitFor(t, "the end of expired", bound, func() bool { return len(seen.of("expired")) == 1 })
	if p := seen.picks["expired"]; p.Decision.Allowed || p.Scope != "p/a" || p.Task.Type() != "work" {
		t.Errorf("expired: %+v", p)
	}
}

// A process that has ceased to dispatch is an event too.
func TestEventsOfTheDispatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait)
		var got reported
		reports, err := events.New(events.Config{OnEvent: got.onEvent})
		must(t, err)
		limits, err := New(rdb, Config{Limits: policy.PerHour("p", 2), App: "shop", Events: reports, Logger: slog.New(slog.DiscardHandler), NoMetrics: true})
		must(t, err)
		must(t, limits.Begin(t.Context()))
		defer limits.End()
		limits.observer.DispatcherPolled("p", "p", 0)
		<-time.After(13 * time.Second)
		if got.count(events.Stalled, "") != 1 {
			t.Errorf("%+v", got.list)
		}
	})
}
