package oteltask_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/oteltask"
	"github.com/headway-go/headway/worker/outbound"
)

var bound = redistest.Stretch(2 * time.Minute)

// traced is a worker whose tasks are traced.
type traced struct {
	t        *testing.T
	rdb      *redis.Client
	name     string // its queue, and the prefix of its keys
	exporter *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	tracing  *oteltask.Tracing
	limits   *worker.Limits
}

// newTraced has a name: those of one name are processes that share their limits and tasks.
func newTraced(t *testing.T, name string, rules map[string]policy.ScopeConfig) *traced {
	t.Helper()
	s := &traced{t: t, rdb: redistest.Client(t), name: name, exporter: tracetest.NewInMemoryExporter()}
	s.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.exporter))
	s.tracing = oteltask.New(oteltask.Config{TracerProvider: s.provider})
	p, err := policy.New(policy.UnmatchedFail, rules)
	must(t, err)
	s.limits, err = worker.New(s.rdb, worker.Config{
		Limits: p, Middleware: worker.MiddlewareConfig{Tracer: s.tracing},
		Logger: slog.New(slog.DiscardHandler), NoMetrics: true, NoUsage: true, Throttle: throttle.Config{Prefix: s.name},
	})
	must(t, err)
	return s
}

func (s *traced) serve(handler asynq.Handler) {
	s.t.Helper()
	server := s.limits.NewServer(asynq.Config{Concurrency: 4, Queues: map[string]int{s.name: 1}, LogLevel: asynq.FatalLevel})
	must(s.t, server.Start(handler))
	s.t.Cleanup(server.Shutdown)
}

func (s *traced) enqueue(ctx context.Context, id string, task queue.Task) {
	s.t.Helper()
	task.ID, task.Queue = id, s.name
	client := queue.NewClient(s.rdb, queue.ClientConfig{OnEnqueue: s.tracing.OnEnqueue})
	_, err := client.Enqueue(ctx, task)
	must(s.t, err)
}

// plan enqueues tasks in a batch, with their turns.
func (s *traced) plan(ctx context.Context, ids ...string) {
	s.t.Helper()
	var tasks []queue.Task
	for _, id := range ids {
		tasks = append(tasks, queue.Task{Type: "work", Scope: "p/acme", ID: id, Queue: s.name})
	}
	client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.limits.Limiter(), OnEnqueue: s.tracing.OnEnqueue})
	_, err := client.EnqueueBatch(ctx, queue.Number(slices.Values(tasks)), nil)
	must(s.t, err)
}

// foreign enqueues with asynq's client.
func (s *traced) foreign(id, scope string) {
	s.t.Helper()
	_, err := s.tracing.Enqueue(s.t.Context(), asynq.NewClientFromRedisClient(s.rdb), "work", nil,
		map[string]string{queue.HeaderScope: scope}, asynq.TaskID(id), asynq.Queue(s.name))
	must(s.t, err)
}

// span waits for the span of an operation on a task.
func (s *traced) span(operation, id string) (found tracetest.SpanStub) {
	s.t.Helper()
	redistest.WaitFor(s.t, "the span "+operation+" of "+id, bound, func() bool {
		all := s.exporter.GetSpans()
		i := slices.IndexFunc(all, func(one tracetest.SpanStub) bool {
			return one.Name == operation+" "+s.name && attributeOf(one, "messaging.message.id") == id
		})
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

func linksTo(one, other tracetest.SpanStub) bool {
	return slices.ContainsFunc(one.Links, func(l sdktrace.Link) bool {
		return l.SpanContext.TraceID() == other.SpanContext.TraceID() && l.SpanContext.SpanID() == other.SpanContext.SpanID()
	})
}

func eventOf(s tracetest.SpanStub, name string) (attributes string, is bool) {
	for _, e := range s.Events {
		if e.Name == name {
			var list []string
			for _, a := range e.Attributes {
				list = append(list, string(a.Key)+"="+a.Value.String())
			}
			return strings.Join(list, " "), true
		}
	}
	return "", false
}

func perHour(limit int64) map[string]policy.ScopeConfig {
	return map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
		"*": {Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour}}},
	}}}
}

// "Limited is an event, no error": of the pick-up's span, with the rule, the place and the expected start.
func TestLimitedIsAnEvent(t *testing.T) {
	t.Parallel()
	s := newTraced(t, redistest.Prefix(t), perHour(1))
	s.serve(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	s.foreign("first", "p/acme")
	run := s.span("process", "first")
	if run.SpanKind != trace.SpanKindConsumer || run.Status.Code != codes.Unset || run.Parent.IsValid() || !linksTo(run, s.span("send", "first")) {
		t.Errorf("the run: %+v", run)
	}
	s.foreign("second", "p/acme")
	got := s.span("receive", "second")
	event, is := eventOf(got, "limited")
	if !is || got.Status.Code != codes.Unset || got.SpanKind != trace.SpanKindConsumer || !linksTo(got, s.span("send", "second")) {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{
		"headway.rule=p/*:tenant", "headway.rule.scope=p/acme", "headway.wait.ahead=0", "headway.wait.expected_start=20",
		"headway.wait.retry_after_ms=35", "headway.wait.until=20", "headway.wait.reason=headway: waiting: p/acme, rule tenant",
	} {
		if !strings.Contains(event, want) {
			t.Errorf("limited has no %s: %s", want, event)
		}
	}
}

// A task that was planned at its enqueue has its turn and its rule in the span of its wait, in whichever process it runs.
func TestWaitOfAPlannedTask(t *testing.T) {
	t.Parallel()
	rules := map[string]policy.ScopeConfig{"p": {
		Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Second}},
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{
			{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 4, Per: time.Second, Burst: 1},
		}}},
	}}
	sends := newTraced(t, redistest.Prefix(t), rules)
	ids := []string{"first", "second", "third"}
	sends.plan(t.Context(), ids...)
	runs := newTraced(t, sends.name, rules)
	runs.serve(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	for ahead, id := range ids[1:] {
		run, send := runs.span("process", id), sends.span("send", id)
		if !linksTo(run, send) {
			t.Errorf("%s is not linked to the span that enqueued it", id)
		}
		wait := runs.span("wait", id)
		event, _ := eventOf(send, "limited")
		for key, want := range map[string]string{
			"headway.rule": "p/*:tenant", "headway.rule.scope": "p/acme", "headway.wait.ahead": strconv.Itoa(ahead + 1),
			"headway.wait.expected_start": attributeOf(wait, "headway.wait.expected_start"),
		} {
			if got := attributeOf(wait, key); got != want || got == "" || !strings.Contains(event, key+"="+want) {
				t.Errorf("%s: the wait has %s %q, want %q; send has %s", id, key, got, want, event)
			}
		}
		if wait.Parent.SpanID() != run.SpanContext.SpanID() {
			t.Errorf("%s waits below %s, and runs as %s", id, wait.Parent.SpanID(), run.SpanContext.SpanID())
		}
	}
}

// docs/tracing.md: "A task that is enqueued with a span carries about 70 bytes more in Redis, and about 100 more if it waits."
func TestBytesOfATracedTask(t *testing.T) {
	t.Parallel()
	s := newTraced(t, redistest.Prefix(t), perHour(1))
	bytes := map[string]int{}
	for _, id := range []string{"none", "runs", "first", "waits"} {
		cfg, scope := queue.ClientConfig{OnEnqueue: s.tracing.OnEnqueue}, "p/acme"
		switch id {
		case "none":
			cfg.OnEnqueue, scope = nil, "p/beta"
		case "first", "waits": // as each task that a client plans
			cfg.Limiter = s.limits.Limiter()
		}
		got, err := queue.NewClient(s.rdb, cfg).Enqueue(t.Context(), queue.Task{Type: "work", Scope: scope, ID: id, Queue: s.name})
		if err != nil || got.Waits != (cfg.Limiter != nil) {
			t.Fatalf("%s: %+v, %v", id, got, err)
		}
		bytes[id] = len(s.rdb.HGet(t.Context(), "asynq:{"+s.name+"}:t:"+id, "msg").Val()) - 2*len(id) // it is in a header too
	}
	more, waits := bytes["runs"]-bytes["none"], bytes["waits"]-bytes["runs"]
	if more < 60 || more > 80 || waits < 85 || waits > 115 {
		t.Errorf("a span takes %d bytes, a wait %d: %v", more, waits, bytes)
	}
}

// A run that fails, panics or loses its lease is an error; one that its API defers is limited.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	s := newTraced(t, redistest.Prefix(t), perHour(100))
	s.serve(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if oteltask.TraceID(ctx) == "" {
			t.Error("the handler's context has no trace")
		}
		switch id, _ := asynq.GetTaskID(ctx); id {
		case "fails":
			return errors.New("no such account")
		case "panics":
			panic("of the handler")
		case "deferred":
			return worker.ReportStatus(ctx, http.StatusTooManyRequests, http.Header{"Retry-After": {"3600"}}).Err()
		}
		return nil
	}))
	for id, want := range map[string]struct {
		scope     string
		outcome   string
		status    sdktrace.Status
		errorType string
	}{
		"ok":       {"p/a", "ok", sdktrace.Status{}, ""},
		"fails":    {"p/b", "failed", sdktrace.Status{Code: codes.Error, Description: "no such account"}, "failed"},
		"panics":   {"p/c", "failed", sdktrace.Status{Code: codes.Error, Description: "the handler panicked"}, "panic"},
		"deferred": {"p/d", "deferred", sdktrace.Status{}, ""},
	} {
		s.enqueue(t.Context(), id, queue.Task{Type: "work", Scope: want.scope})
		run := s.span("process", id)
		if outcome := attributeOf(run, "headway.outcome"); outcome != want.outcome || run.Status != want.status || attributeOf(run, "error.type") != want.errorType {
			t.Errorf("%s: %s %+v %s", id, outcome, run.Status, attributeOf(run, "error.type"))
		}
		if _, is := eventOf(run, "limited"); is != (id == "deferred") {
			t.Errorf("%s: %+v", id, run.Events)
		}
		if attributeOf(run, "headway.scope") != want.scope || attributeOf(run, "messaging.system") != "asynq" || attributeOf(run, "headway.attempt") != "1" {
			t.Errorf("%s: %v", id, run.Attributes)
		}
	}
	s.foreign("unmatched", "q")
	if got := s.span("receive", "unmatched"); got.Status.Code != codes.Error || attributeOf(got, "error.type") != "refused" {
		t.Errorf("unmatched: %+v", got.Status)
	}
}

// The context of the enqueuer's span is the parent of send, and a refused task is an error there.
func TestSend(t *testing.T) {
	t.Parallel()
	s := newTraced(t, redistest.Prefix(t), perHour(1))
	ctx, order := s.provider.Tracer("test").Start(t.Context(), "order")
	s.plan(ctx, "a", "b", "a")
	var states []string
	for _, one := range s.exporter.GetSpans() {
		if one.Parent.SpanID() != order.SpanContext().SpanID() || one.SpanKind != trace.SpanKindProducer || one.Status.Code != codes.Unset {
			t.Errorf("%+v", one)
		}
		states = append(states, attributeOf(one, "headway.state"))
	}
	if !slices.Equal(states, []string{"enqueued", "enqueued", "duplicate"}) {
		t.Errorf("%q", states)
	}
	const want = "headway.rule=p/*:tenant headway.rule.scope=p/acme headway.wait.ahead=1 headway.wait.expected_start=20"
	if event, is := eventOf(s.span("send", "b"), "limited"); !is || !strings.HasPrefix(event, want) {
		t.Errorf("b: %q", event)
	}
	if _, err := s.tracing.Enqueue(ctx, asynq.NewClientFromRedisClient(s.rdb), "", nil, nil, asynq.Queue(s.name)); err == nil {
		t.Error("asynq takes a task without a type")
	}
	if last := s.exporter.GetSpans()[3]; last.Status.Code != codes.Error {
		t.Errorf("%+v", last)
	}
}

// "Headers sends the context of a run on with its request."
func TestOutboundRequestsBelongToTheRun(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var parent string
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		parent = r.Header.Get("Traceparent")
	}))
	t.Cleanup(api.Close)
	s := newTraced(t, redistest.Prefix(t), perHour(10))
	handler, err := outbound.New(outbound.Config{AllowHosts: []string{"127.0.0.1"}, Headers: s.tracing.Headers})
	must(t, err)
	t.Cleanup(handler.Close)
	s.serve(handler)
	s.enqueue(t.Context(), "call", queue.Task{Type: queue.TypeHTTP, Scope: "p/acme", HTTP: &queue.HTTP{URL: api.URL}})
	run := s.span("process", "call").SpanContext
	mu.Lock()
	defer mu.Unlock()
	if want := "00-" + run.TraceID().String() + "-" + run.SpanID().String() + "-01"; parent != want {
		t.Errorf("the API got %q, want %q", parent, want)
	}
}

// A context without a span, and one that is not sampled, have no id for exemplars.
func TestTraceID(t *testing.T) {
	t.Parallel()
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, _ := never.Tracer("test").Start(t.Context(), "x")
	if a, b := oteltask.TraceID(t.Context()), oteltask.TraceID(ctx); a != "" || b != "" {
		t.Errorf("%q %q", a, b)
	}
	ctx, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "x")
	if got := oteltask.TraceID(ctx); got != span.SpanContext().TraceID().String() {
		t.Errorf("%q", got)
	}
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must
