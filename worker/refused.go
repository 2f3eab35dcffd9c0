package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// A task that the present limits refuse, or that is for another application, waits for limits or a worker that let it run. Such tasks
// come back by themselves, at low cost even if there are many.
const (
	// appPause is after how long a task comes back that another application's worker may take, and limitsPause after how long a task
	// that waits for other limits. Up to half as much is added at random.
	appPause    = time.Second
	limitsPause = 10 * time.Second
)

// refusal returns why the limits refuse a task, as observers receive it, "" for any other error; and
// the kind of tasks that are logged together: those of a rule or a level, and all that meet no rule of one provider.
func (j *job) refusal(err error) (why, kind string) {
	var app *policy.AppError
	var cost *policy.CostError
	var unmatched *policy.UnmatchedError
	switch {
	case errors.As(err, &app):
		return "app", app.Level.String()
	case errors.As(err, &unmatched):
		if j.scope == "" { // no provider begins with "/"
			return "unmatched", "/" + j.task.Type()
		}
		return "unmatched", unmatched.Scope.Provider()
	case errors.As(err, &cost):
		return "cost", cost.Scope.Provider() + ":" + cost.Rule
	}
	return "", ""
}

// refused puts back a refused task that may run later. It returns false for a task that fails for good.
func (m *Middleware) refused(ctx context.Context, j *job, err error) (ended bool, with error) {
	why, kind := j.refusal(err)
	pause := limitsPause
	switch {
	case why == "":
		return false, nil
	case why == "app":
		pause = appPause
		m.dispatcher.Ended(j.ref()) // else it would be dispatched here again and again
	case why == "unmatched" && m.cfg.Limiter.Policy().Unmatched() == policy.UnmatchedFail:
		if m.hasPlace(ctx, j) {
			m.dispatcher.Ended(j.ref())
		}
		return false, nil
	case why == "cost" && m.neverAdmitted(ctx, j, err) && !m.hasPlace(ctx, j): // else it could pass when it got its place
		return false, nil
	}
	if ended, with := m.endExpired(ctx, j, throttle.Decision{Binding: -1}, j.deadline); ended {
		return true, with
	}
	at := m.byMaxWait(j, m.returns.next(time.Now(), pause))
	if !j.deadline.IsZero() && at.After(j.deadline) {
		at = j.deadline
	}
	m.observer.Refused(j.queue, why, time.Until(at))
	j.why = strings.TrimPrefix(strings.TrimPrefix(err.Error(), "throttle: "), "headway: ")
	m.logRefused(ctx, j, why, kind, err)
	return true, m.wait(ctx, j, "", at)
}

// neverAdmitted reports whether a task that costs too much fails for good.
func (m *Middleware) neverAdmitted(ctx context.Context, j *job, err error) bool {
	if fails := m.cfg.failRefused; fails != nil {
		return fails(ctx, j.request(), err)
	}
	for _, before := range m.cfg.Limiter.EarlierPolicies() {
		if j.request().Check(before) == nil {
			return false
		}
	}
	return true
}

// hasPlace reports whether a task is in its queue of waiters, or was dispatched. It is also true if that cannot be read.
func (m *Middleware) hasPlace(ctx context.Context, j *job) bool {
	if j.scope == "" {
		return false
	}
	queued, granted, err := m.cfg.Limiter.Waitlist().Standing(ctx, j.ref())
	if err != nil {
		m.observer.Failed("place")
	}
	return err != nil || queued || granted
}

// logRefused logs that tasks wait for such a reason, once a minute for all of one kind.
func (m *Middleware) logRefused(ctx context.Context, j *job, why, kind string, err error) {
	more, due := m.repeats.Due(why+" "+kind, time.Now())
	if !due {
		return
	}
	log := m.log.With("scope", j.scope, "type", j.task.Type(), "queue", j.queue, "task_id", j.id, "more", more, "reason", err)
	switch why {
	case "app":
		log.WarnContext(ctx, "this worker's application may not spend from the scope; its tasks wait for another worker")
	case "unmatched":
		log.WarnContext(ctx, "no rule matches the scope; its tasks wait until you add a rule, or delete them")
	default:
		log.WarnContext(ctx, "waiting task can never pass under the current limits; it waits for new limits")
	}
}

// refusedReturns spreads the times at which refused tasks come back. It is safe for concurrent use.
type refusedReturns struct {
	mu   sync.Mutex
	last time.Time // the last time that is taken
}

const (
	// returnApart is the interval between the times at which refused tasks come back to this process, as long as none
	// waits for longer than returnMost. Beyond that, each waits up to twice as long.
	returnApart = 50 * time.Millisecond
	returnMost  = 30 * time.Second
)

// next returns when a task comes back that is put back now.
func (r *refusedReturns) next(now time.Time, pause time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Before(now) {
		r.last = now
	}
	r.last = r.last.Add(returnApart)
	if latest := now.Add(returnMost); r.last.After(latest) {
		r.last = latest
		return latest.Add(rand.N(returnMost)) // too many: each comes back about once a minute
	}
	if at := now.Add(pause + rand.N(pause/2)); at.After(r.last) {
		return at
	}
	return r.last
}

// Unlimited is the scope that Spends returns for a task that no limit is for: the task runs at once and
// spends nothing. No task's header can name it.
const Unlimited = "\x00unlimited"

// unscoped runs a task that names no scope, if it may run. Otherwise the task is refused like one whose scope meets no rule.
func (m *Middleware) unscoped(ctx context.Context, j *job, next asynq.Handler) error {
	asked := m.cfg.Spends != nil
	if j.unlimited || !asked && !m.cfg.RequireScope || !m.cfg.Limiter.Policy().Denies() {
		return m.run(ctx, j, next, throttle.Decision{})
	}
	err := &unscopedError{kind: j.task.Type(), asked: asked}
	if put, with := m.refused(ctx, j, err); put {
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
