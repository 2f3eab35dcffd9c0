package worker

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle"
)

// Tracer observes single pick-ups with their contexts, which traces need: package worker/oteltask has
// one for OpenTelemetry. Its methods are called in the tasks' goroutines and must be quick: Starts
// comes between the start that the limits granted and the run.
type Tracer interface {
	// Starts reports a run that begins. It returns the context for the handler, and a function that is
	// called when the run has ended: with the outcome that Observer.Ran gets, and the error that asynq
	// gets. After a panic the outcome is "failed" and the error nil.
	Starts(ctx context.Context, p Pickup) (run context.Context, ended func(outcome string, err error))
	// Waits reports a pick-up without a run, after which the task waits on. That is no failure.
	Waits(ctx context.Context, p Pickup)
	// Ends reports a pick-up without a run that failed: asynq retries or archives the task. err is nil
	// for a task that was dropped.
	Ends(ctx context.Context, p Pickup, err error)
}

// Pickup is one pick-up of a task.
type Pickup struct {
	// Task is the task, and ID and Queue are asynq's. Scope is what the task spends from; empty for a task that is not limited.
	Task             *asynq.Task
	ID, Queue, Scope string
	// Retried is how often the task has failed before.
	Retried int
	// At is when the worker took the task from asynq, by this process's clock.
	At time.Time
	// Decision is what the limits have decided. It is zero for a task that is not limited, and for one that was not decided on.
	Decision throttle.Decision
	// Ahead is how many tasks of its scope and queue wait before it, -1 if it has no place or that is not known. Expected is the
	// estimated time until its start, throttle.Never if no clock can tell.
	Ahead    int64
	Expected time.Duration
	// Until is when the task comes back at the latest, and Reason what it waits for, in words. Only for
	// Waits. The words may contain customers' names.
	Until  time.Time
	Reason string
}

func (j *job) pickup() Pickup {
	return Pickup{
		Task: j.task, ID: j.id, Queue: j.queue, Scope: j.scope, Retried: j.retried,
		At: j.picked, Decision: j.decision, Ahead: j.ahead, Expected: j.expected,
	}
}

// traceRun reports the run to the Tracer.
func (m *Middleware) traceRun(ctx context.Context, j *job) (context.Context, func(outcome string, err error)) {
	j.ran = true
	if m.cfg.Tracer == nil {
		return ctx, func(string, error) {}
	}
	return m.cfg.Tracer.Starts(ctx, j.pickup())
}

// traceEnd reports the end of a pick-up without a run to the Tracer.
func (m *Middleware) traceEnd(ctx context.Context, j *job, err error) {
	if m.cfg.Tracer == nil || j.ran {
		return
	}
	p := j.pickup()
	limited, waits := AsLimited(err)
	if !waits {
		m.cfg.Tracer.Ends(ctx, p, err)
		return
	}
	p.Until, p.Reason = limited.At, limited.Error()
	m.cfg.Tracer.Waits(ctx, p)
}

// traceKey is the key of the trace in which a task was enqueued, in the context of a pick-up.
type traceKey struct{}

// withTrace returns the context of a pick-up with the trace in which the task was enqueued: its header traceparent, as W3C Trace
// Context has it, if that is sampled.
func withTrace(ctx context.Context, task *asynq.Task) context.Context {
	parent := task.Headers()["traceparent"]
	if parent == "" {
		return ctx
	}
	parts := strings.Split(parent, "-")
	const fields, length = 4, 32
	if len(parts) < fields || len(parts[1]) != length || strings.Trim(parts[1], "0123456789abcdef") != "" {
		return ctx
	}
	if flags, err := strconv.ParseUint(parts[3], 16, 8); err != nil || flags&1 == 0 {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, parts[1])
}

// traceID is Config.TraceID, or else the trace in which the task was enqueued.
func (l *Limits) traceID(ctx context.Context) string {
	if l.cfg.TraceID != nil {
		if id := l.cfg.TraceID(ctx); id != "" {
			return id
		}
	}
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}
