package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

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

// Each pick-up is a run, a wait, or an end without a run, and the run's context is what Starts returned.
func TestTracer(t *testing.T) {
	t.Parallel()
	var seen tracer
	s := newSystem(t, []policy.Rule{{Name: "few", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Hour}}, MiddlewareConfig{Tracer: &seen})
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

	s.addForeign("waits")
	wants("waits", "waits: headway: waiting: p/a, rule few")
	p := seen.picks["waits"]
	if rule, _ := p.Decision.BindingRule(); rule.Rule != "few" || p.Decision.Position.Ahead != 0 || time.Until(p.Until) < 10*time.Minute || p.Queue != "default" {
		t.Errorf("it waits until %s, by %+v", p.Until, p.Decision)
	}
	s.add(queue.Task{ID: "expired", Deadline: time.Now().Add(10 * time.Minute)})
	redistest.WaitFor(t, "the end of expired", bound, func() bool { return len(seen.of("expired")) == 1 })
	if p := seen.picks["expired"]; p.Decision.Allowed || p.Scope != "p/a" || p.Task.Type() != "work" {
		t.Errorf("expired: %+v", p)
	}
}
