// Package oteltask traces Headway's tasks with OpenTelemetry: who enqueued a task, how long it waited for its limits and for which rule,
// and its run.
//
//	tracing := oteltask.New(oteltask.Config{})
//	client := queue.NewClient(rdb, queue.ClientConfig{OnEnqueue: tracing.OnEnqueue})
//	limits, err := worker.New(rdb, worker.Config{Middleware: worker.MiddlewareConfig{Tracer: tracing}})
//	handler, err := outbound.New(outbound.Config{Headers: tracing.Headers})
//
// There are four kinds of spans:
//
//   - "send QUEUE", a producer: one task is enqueued. Its context travels in the task's headers.
//   - "process QUEUE", a consumer: one run. It begins a trace of its own, linked to the producer's, since a task may wait for hours.
//   - "wait QUEUE", below the run: the wait for the limits before it, with the rule, how many waiters were before it, and the expected
//     start.
//   - "receive QUEUE", a consumer: a worker took the task and did not run it. Usually the task has to wait, which is the event "limited"
//     and no error.
//
// Names and attributes follow OpenTelemetry's conventions for messaging, which are not stable yet: a minor version may follow a change.
// docs/tracing.md lists them.
package oteltask

import (
	"context"
	"maps"
	"net/http"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker"
)

// scopeName names this package as what makes the spans.
const scopeName = "github.com/headway-go/headway/worker/oteltask"

// Config configures New. The zero Config is ready to use.
type Config struct {
	// TracerProvider makes the spans. Defaults to the global one, otel.GetTracerProvider.
	TracerProvider trace.TracerProvider
	// Propagator carries contexts in the headers of tasks and of requests. Defaults to propagation.TraceContext, the W3C headers
	// traceparent and tracestate.
	Propagator propagation.TextMapPropagator
}

// Tracing traces the tasks of one process. It is a worker.Tracer. It is safe for concurrent use, does no I/O and needs no closing.
type Tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	waits      waits
}

var _ worker.Tracer = (*Tracing)(nil)

// New returns a Tracing.
func New(cfg Config) *Tracing {
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	return &Tracing{tracer: cfg.TracerProvider.Tracer(scopeName), propagator: cfg.Propagator}
}

// OnEnqueue begins the span of a task that is enqueued, a child of ctx's: set it as queue.ClientConfig.OnEnqueue.
func (t *Tracing) OnEnqueue(ctx context.Context, task queue.Task) (headers map[string]string, done func(queue.Result)) {
	span, headers := t.send(ctx, task)
	return headers, func(r queue.Result) {
		defer span.End()
		span.SetAttributes(stateKey.String(string(r.State)))
		switch {
		case r.Err != nil:
			fail(span, r.Err)
		case r.Waits:
			w := wait{ahead: r.Ahead, expected: r.Start}
			if r.WaitsFor != nil {
				w.waitsFor(r.WaitsFor)
			}
			span.AddEvent(limitedEvent, trace.WithAttributes(w.attributes()...))
		}
	}
}

// Enqueue enqueues a task with asynq's own client, in a span as OnEnqueue's, and returns what asynq.Client.EnqueueContext does. headers
// may be nil; they name the scope of a task that Config.Spends does not know.
func (t *Tracing) Enqueue(
	ctx context.Context, client *asynq.Client, kind string, payload []byte, headers map[string]string, opts ...asynq.Option,
) (*asynq.TaskInfo, error) {
	name := queue.DefaultQueue
	for _, opt := range opts {
		if opt.Type() == asynq.QueueOpt {
			name, _ = opt.Value().(string)
		}
	}
	span, all := t.send(ctx, queue.Task{Queue: name, Type: kind, Scope: headers[queue.HeaderScope]})
	defer span.End()
	maps.Copy(all, headers)
	info, err := client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(kind, payload, all), opts...)
	if err != nil {
		fail(span, err)
		return info, err
	}
	span.SetAttributes(messageIDKey.String(info.ID))
	return info, nil
}

// send begins the span of a task that is enqueued, and returns it with its context as headers.
func (t *Tracing) send(ctx context.Context, task queue.Task) (trace.Span, map[string]string) {
	ctx, span := t.tracer.Start(ctx, "send "+task.Queue, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(about("send", task.Queue, task.ID, task.Type, task.Scope)...))
	headers := propagation.MapCarrier{}
	t.propagator.Inject(ctx, headers)
	return span, headers
}

// Headers sends the context of a run on with its request: set it as outbound.Config.Headers. The called API then belongs to its trace.
func (t *Tracing) Headers(ctx context.Context, _ *asynq.Task, header http.Header) {
	t.propagator.Inject(ctx, propagation.HeaderCarrier(header))
}

// TraceID returns the trace id of ctx in hexadecimal if its span is sampled, and "" otherwise: for logs, and for exemplars of metrics.
func TraceID(ctx context.Context) string {
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		return span.TraceID().String()
	}
	return ""
}

func fail(span trace.Span, err error) {
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}
