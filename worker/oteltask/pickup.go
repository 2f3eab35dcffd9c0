package oteltask

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

// Starts implements worker.Tracer: it begins the span of a run, and makes that of the wait before it.
func (t *Tracing) Starts(ctx context.Context, p worker.Pickup) (context.Context, func(outcome string, err error)) {
	now := time.Now()
	earlier, known := t.waits.take(p, now)
	links := t.links(ctx, p)
	if known && earlier.span.IsValid() {
		links = append(links, trace.Link{SpanContext: earlier.span})
	}
	ctx, span := t.tracer.Start(ctx, "process "+p.Queue, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithTimestamp(now), trace.WithLinks(links...), trace.WithAttributes(consumed("process", p)...))
	if w, waited := waitOf(p, earlier, known); waited && span.IsRecording() {
		_, wait := t.tracer.Start(ctx, "wait "+p.Queue, trace.WithTimestamp(w.began),
			trace.WithAttributes(consumed("wait", p)...), trace.WithAttributes(w.attributes()...))
		wait.End(trace.WithTimestamp(now))
	}
	return ctx, func(outcome string, err error) {
		defer span.End()
		span.SetAttributes(outcomeKey.String(outcome))
		switch outcome {
		case "ok":
		case "deferred": // the API says that it is limited itself
			event := []attribute.KeyValue{reasonKey.String("upstream")}
			if limited, is := worker.AsLimited(err); is {
				event = append(event, at(untilKey, limited.At))
			}
			span.AddEvent(limitedEvent, trace.WithAttributes(event...))
		default:
			end(span, outcome, err)
		}
	}
}

// end ends the span of a run that failed, or lost its lease.
func end(span trace.Span, outcome string, err error) {
	switch {
	case err != nil:
		span.SetAttributes(errorTypeKey.String(outcome))
		fail(span, err)
	case outcome == "lost":
		span.SetAttributes(errorTypeKey.String(outcome))
		span.SetStatus(codes.Error, throttle.ErrLeaseLost.Error())
	default:
		span.SetAttributes(errorTypeKey.String("panic"))
		span.SetStatus(codes.Error, "the handler panicked")
	}
}

// Waits implements worker.Tracer: it makes the span of a pick-up after which the task waits.
func (t *Tracing) Waits(ctx context.Context, p worker.Pickup) {
	ctx, span := t.receive(ctx, p)
	defer span.End()
	now := denial(p)
	now.span = trace.SpanContextFromContext(ctx)
	t.waits.keep(p, now)
	event := append(now.attributes(), at(untilKey, p.Until), reasonKey.String(p.Reason))
	if wait := p.Decision.RetryAfter; wait > 0 && wait != throttle.Never {
		event = append(event, retryKey.Int64(wait.Milliseconds()))
	}
	span.AddEvent(limitedEvent, trace.WithAttributes(event...))
}

// Ends implements worker.Tracer: it makes the span of a pick-up that failed without a run, or dropped its task.
func (t *Tracing) Ends(ctx context.Context, p worker.Pickup, err error) {
	t.waits.take(p, time.Now())
	_, span := t.receive(ctx, p)
	defer span.End()
	if err == nil {
		span.AddEvent(droppedEvent)
		return
	}
	span.SetAttributes(errorTypeKey.String("refused"))
	fail(span, err)
}

func (t *Tracing) receive(ctx context.Context, p worker.Pickup) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "receive "+p.Queue, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithTimestamp(p.At), trace.WithLinks(t.links(ctx, p)...), trace.WithAttributes(consumed("receive", p)...))
}

// links returns a link to the span that enqueued the task, if the task carries one.
func (t *Tracing) links(ctx context.Context, p worker.Pickup) []trace.Link {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	producer := trace.SpanContextFromContext(t.propagator.Extract(ctx, propagation.MapCarrier(p.Task.Headers())))
	if !producer.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: producer}}
}

// waitOf returns the wait of a task that starts: since it was denied here, since it was enqueued if it was planned then, or since its
// pick-up if its handler waited.
func waitOf(p worker.Pickup, earlier wait, known bool) (wait, bool) {
	if known {
		return earlier, true
	}
	w := wait{began: p.At, ahead: -1}
	if len(p.Decision.Rules) == 1 {
		w.waitsFor(p.Decision.Rules[0].RuleInfo)
	} else if rule, is := p.Decision.BindingRule(); is {
		w.waitsFor(rule.RuleInfo)
	}
	planned := p.Retried == 0 && w.plannedBy(p)
	if due := due(p); !due.IsZero() && (p.Decision.Handed || planned) {
		w.began = due
	}
	return w, p.Decision.Handed || p.Decision.Wait > 0 || planned
}

// plannedBy adds what the task's headers say of a wait that began when it was enqueued, and reports whether they say anything.
func (w *wait) plannedBy(p worker.Pickup) bool {
	at, planned := queue.ReadPlannedWait(p.Task)
	if !planned {
		return false
	}
	w.ahead, w.expected = at.Ahead, at.Start
	if at.Rule != "" {
		w.rule, w.level = at.Rule, at.Level
	}
	return true
}

// due returns when a task of package queue that has not failed was due; it is zero for any other.
func due(p worker.Pickup) time.Time {
	if p.Retried > 0 {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, p.Task.Headers()[queue.HeaderDue])
	if err != nil || at.After(p.At) {
		return time.Time{}
	}
	return at
}

// denial returns the wait of a task that was denied.
func denial(p worker.Pickup) wait {
	w := wait{began: p.At, ahead: p.Ahead, until: p.Until}
	if at := due(p); !at.IsZero() {
		w.began = at
	}
	if rule, is := p.Decision.BindingRule(); is {
		w.waitsFor(rule.RuleInfo)
	}
	if p.Expected != throttle.Never {
		w.expected = time.Now().Add(p.Expected)
	}
	return w
}

func (w *wait) waitsFor(rule *throttle.RuleInfo) {
	w.rule, w.level = rule.Pattern+":"+rule.Rule, rule.Scope
}

func (w wait) attributes() []attribute.KeyValue {
	var list []attribute.KeyValue
	if w.rule != "" {
		list = append(list, ruleKey.String(w.rule), levelKey.String(w.level))
	}
	if w.ahead >= 0 {
		list = append(list, aheadKey.Int64(w.ahead))
	}
	if !w.expected.IsZero() {
		list = append(list, at(expectedKey, w.expected))
	}
	return list
}
