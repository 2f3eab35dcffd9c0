package worker

import (
	"context"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Unlimited is the scope that Spends returns for a task that no limit is for: the task runs at once and
// spends nothing. No task's header can name it.
const Unlimited = "\x00unlimited"

// unscoped runs a task that names no scope, if it may run. Otherwise the task is refused like one whose
// scope meets no rule.
func (t *Middleware) unscoped(ctx context.Context, j *job, next asynq.Handler) error {
	asked := t.cfg.Spends != nil
	if j.unlimited || !asked && !t.cfg.RequireScope || !t.cfg.Limiter.Policy().Denies() {
		return t.run(ctx, j, next, throttle.Decision{})
	}
	err := &unscopedError{kind: j.task.Type(), asked: asked}
	if put, with := t.refused(ctx, j, err); put {
		return with
	}
	return permanent(err)
}

// unscopedError is a policy.UnmatchedError for a task that names no scope.
type unscopedError struct {
	kind  string
	asked bool // Spends
}

// unscopedText begins the text of an unscopedError.
const unscopedText = "no scope is named by this task of type "

func (e *unscopedError) Error() string {
	try := "its header " + queue.HeaderScope + ", or unmatched: allow in the limits"
	if e.asked {
		try = "have Config.Spends return its scope, or worker.Unlimited if no limit is for it"
	}
	return fmt.Sprintf("headway: %s%q, and the limits deny what meets no rule; try: %s", unscopedText, e.kind, try)
}

func (e *unscopedError) Unwrap() error { return new(policy.UnmatchedError) }
