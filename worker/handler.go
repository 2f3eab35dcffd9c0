package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// handler wraps next: a task runs when every rule on its scope's path admits it, and waits otherwise.
// A task whose cost or headers can never pass fails for good with that reason. A task that next has no
// handler for fails as with asynq's own mux. Neither spends anything.
func (m *Middleware) handler(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
		m.dispatcher.Size(1)
		slot, leave := m.dispatcher.TakeSlot(ctx)
		defer leave()
		m.dispatcher.CheckWatchdog()
		ctx = withTrace(ctx, task)
		j, err := m.read(ctx, task)
		j.slot = slot
		defer func() {
			m.recordEnd(j, err)
			m.traceEnd(ctx, j, err)
		}()
		m.observer.PickedUp(j.queue)
		if err == nil {
			if err = m.checkExpired(ctx, j); err != nil && j.scope != "" {
				m.dispatcher.Ended(j.ref())
			}
		}
		if err != nil {
			return permanent(err)
		}
		if err := checkHandler(next, task); err != nil {
			return m.noHandler(j, err)
		}
		if j.scope == "" {
			slot.StartsFor("", false)
			return m.unscoped(ctx, j, next)
		}
		m.queues.Came(j.queue)
		req := j.request()
		req.Waiter.Granted = m.dispatcher.Arrived(ctx, j.ref())
		if j.crowded = !slot.StartsFor(m.tenant(j.scope), req.Waiter.Granted != nil); j.crowded {
			j.decision = throttle.Decision{Binding: -1, Joins: true, Handed: req.Waiter.Granted != nil}
			return m.denied(ctx, j, j.decision)
		}
		for {
			d, err := m.start(ctx, j, req)
			j.decision = d
			switch {
			case err != nil:
				return m.notDecided(ctx, j, d, err)
			case !d.Allowed:
				return m.denied(ctx, j, d)
			}
			if err = m.run(ctx, j, next, d); !errors.Is(err, errMissed) {
				return err
			}
			req.Missed = &d
		}
	})
}

// TaskMatcher reports which tasks a handler is for; a handler may implement it. Other tasks then fail
// before they spend anything, see MiddlewareConfig.FailUnknownTypes. An asynq.ServeMux does not need
// it: Headway asks it for its patterns, each of which matches the beginning of a type.
type TaskMatcher interface {
	Matches(task *asynq.Task) bool
}

// checkHandler rejects a task that next has no handler for, before the task spends anything.
func checkHandler(next asynq.Handler, task *asynq.Task) error {
	knows := true
	switch h := next.(type) {
	case TaskMatcher:
		knows = h.Matches(task)
	case *asynq.ServeMux:
		_, pattern := h.Handler(task)
		knows = pattern != ""
	}
	if !knows {
		return &noHandlerError{task.Type()}
	}
	return nil
}

// noHandlerError is asynq.ErrHandlerNotFound with a text of Headway's.
type noHandlerError struct{ kind string }

func (e *noHandlerError) Error() string {
	return fmt.Sprintf("headway: no handler is registered for tasks of type %q", e.kind)
}

func (e *noHandlerError) Unwrap() error { return asynq.ErrHandlerNotFound }

// noHandler handles a task that next has no handler for. Another worker may have one, for example a worker of the next release. The
// task has spent nothing, and leaves its queue of waiters until it comes back.
func (m *Middleware) noHandler(j *job, err error) error {
	if j.scope != "" {
		m.dispatcher.Ended(j.ref())
	}
	if m.cfg.FailUnknownTypes {
		return permanent(err)
	}
	return m.applyBudget(j, err)
}

// start decides on the task. If its start is near and a hold is free, start waits for it.
func (m *Middleware) start(ctx context.Context, j *job, req throttle.Request) (throttle.Decision, error) {
	ctx, cancel := m.whileServing(ctx)
	leave := m.acquireHold(ctx, j, &req)
	unmark := m.marksBefore(ctx, j, &req)
	d, err := m.cfg.Limiter.Start(ctx, req)
	after := func() {
		cancel()
		leave()
	}
	if err == nil && d.Allowed {
		// The start was in time, and nothing that other work can delay may come between it and the
		// run: the run would be late, unnoticed, with all tasks that queue there.
		go after()
		return d, nil
	}
	unmark()
	after()
	return d, err
}

// brief is how far ahead a start may be for which a task waits without a hold: to put it back takes longer.
const brief = 5 * time.Millisecond

// acquireHold takes a place in which the task can wait for its start, if one is free, and sets in the
// request how long it may wait. leave frees the place.
func (m *Middleware) acquireHold(ctx context.Context, j *job, req *throttle.Request) (leave func()) {
	ahead := min(m.cfg.Hold, j.startsWithin(ctx))
	if ahead <= 0 || !m.dispatcher.Holds() {
		return func() {}
	}
	waits, granted, leave := m.dispatcher.Hold()
	req.Waiter.MaxDelay, req.MaxDelay = min(ahead, brief), min(ahead, brief)
	if waits {
		req.Waiter.MaxDelay = ahead
	}
	if granted {
		req.MaxDelay = ahead
	}
	req.OnWait = m.hold
	return leave
}

// tenant returns the tenant whose slots tasks of a scope use, empty for none.
func (m *Middleware) tenant(scope string) string {
	if m.cfg.Tenant != nil {
		return m.cfg.Tenant(scope)
	}
	_, rest, _ := strings.Cut(scope, "/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// hold counts a task that waits in its handler. The returned function ends the wait.
func (m *Middleware) hold(time.Duration) func() {
	began := time.Now()
	m.observer.Holding(1)
	return func() {
		m.observer.Holding(-1)
		m.observer.Held(time.Since(began))
	}
}

// whileServing returns ctx, canceled also when Stop is called or the task's server shuts down.
func (m *Middleware) whileServing(ctx context.Context) (context.Context, context.CancelFunc) {
	serving := asynqx.ClientOf(ctx).Serving
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(serving, cancel)
	return ctx, func() { detach(); cancel() }
}

// notDecided handles a task without a decision, or whose wait for its start was interrupted.
func (m *Middleware) notDecided(ctx context.Context, j *job, d throttle.Decision, err error) error {
	if ctx.Err() != nil {
		return m.cutOff(ctx, j)
	}
	if m.cfg.OnMaxWait != nil && !j.headerHasDue() {
		j.since = m.loadWait(ctx, j) // the wait goes on: to be put back does not start it anew
	}
	switch {
	case errors.Is(err, throttle.ErrUnavailable):
		m.observer.Failed("decide")
		return m.wait(ctx, j, "", time.Now().Add(outagePause))
	case asynqx.ClientOf(ctx).Serving.Err() != nil:
		return m.wait(ctx, j, "", m.byMaxWait(j, m.back(ctx, j, d)))
	}
	if put, with := m.refused(ctx, j, err); put {
		return with
	}
	return permanent(err)
}

// back gives a task the place that it had, or one at the front of its line, and returns when asynq brings it by itself: now if Redis
// did not answer.
func (m *Middleware) back(ctx context.Context, j *job, d throttle.Decision) time.Time {
	if d.Handed && m.dispatcher.Unused(j.ref()) == nil {
		return time.Now().Add(waitlist.SafetyNet(d.Wait))
	}
	joined, err := m.cfg.Limiter.Waitlist().Rejoin(ctx, j.waiter(), d.Place())
	if err = cmp.Or(err, joined.Err); err != nil {
		m.observer.Failed("rejoin")
		return time.Now()
	}
	return time.Now().Add(waitlist.SafetyNet(joined.Expected))
}

// denied handles a task that may not start yet. It ends now if its max wait or deadline ends before it can start; else it is put back.
func (m *Middleware) denied(ctx context.Context, j *job, d throttle.Decision) error {
	if ctx.Err() != nil {
		return m.cutOff(ctx, j)
	}
	wait, by := earliest(d)
	deadline := m.deadline(ctx, j, wait)
	if ended, with := m.endExpired(ctx, j, d, deadline); ended {
		return with
	}
	if !deadline.IsZero() {
		m.dispatcher.Ended(j.ref())
		return permanent(fmt.Errorf("headway: %s, after its deadline of %s", tooLate(j.scope, d, wait, by), deadline.UTC().Format(time.RFC3339)))
	}
	return m.putBack(ctx, j, d)
}

// tooLate describes what a task waits for that would start after its deadline: a rule, or a pause.
func tooLate(scope string, d throttle.Decision, wait time.Duration, by throttle.RuleState) string {
	wait = wait.Round(time.Millisecond)
	switch {
	case by.Rule == "" && d.Paused:
		return fmt.Sprintf("the API of %s is not called for another %s", scope, wait)
	case by.Rule == "":
		return fmt.Sprintf("the limits of %s admit it in %s at the earliest", scope, wait)
	case by.Rule == policy.PausedRule:
		return fmt.Sprintf("%s is paused, and it starts in %s at the earliest", by.Scope, wait)
	}
	return fmt.Sprintf("rule %s of %s admits it in %s at the earliest", by.Rule, by.Scope, wait)
}

// putBack gives a denied task its place, and reschedules it until its turn brings it.
func (m *Middleware) putBack(ctx context.Context, j *job, d throttle.Decision) error {
	j.queued = true
	if d.Handed || d.HadTurn {
		return m.wait(ctx, j, "", m.byMaxWait(j, m.back(ctx, j, d)))
	}
	joined, err := m.cfg.Limiter.Waitlist().Join(ctx, []waitlist.Waiter{j.waiter()})
	if err == nil {
		err = joined[0].Err
	}
	if err != nil {
		return m.notDecided(ctx, j, d, err)
	}
	j.ahead, j.expected = joined[0].Ahead, joined[0].Expected
	at := m.byMaxWait(j, time.Now().Add(waitlist.SafetyNet(j.expected)))
	if j.crowded {
		j.why = fmt.Sprintf("scope %q: other tasks of its tenant have half of the slots", j.scope)
		return m.wait(ctx, j, "", at)
	}
	m.planner.PutBack(j.queue, j.task.Type())
	rule, _ := d.BindingRule()
	return m.wait(ctx, j, rule.Rule, at)
}

// cutOff handles a task that asynq has ended before it started: its time is over, it was canceled, or asynq's lease was lost. asynq
// counts it as failed, whatever its handler returns, and retries it. Until then the task is not in its queue of waiters.
func (m *Middleware) cutOff(ctx context.Context, j *job) error {
	m.dispatcher.Ended(j.ref())
	return ctx.Err()
}

// failed handles a failure that asynq caused. It may precede the handler: the task then still waits or counts as dispatched.
func (m *Middleware) failed(ctx context.Context, task *asynq.Task) {
	if ctx.Err() == nil {
		return
	}
	defer func() {
		if x := recover(); x != nil { // a panic in Config.Spends would end the process
			m.observer.Failed("spends")
		}
	}()
	if j, err := m.read(ctx, task); err == nil && j.scope != "" {
		m.dispatcher.Ended(j.ref())
	}
}

// deadline returns the task's deadline if it ends before wait has passed. The deadline of a context may come from asynq's Timeout, which
// starts anew with each pick-up; only Redis can tell which it is.
func (m *Middleware) deadline(ctx context.Context, j *job, wait time.Duration) time.Time {
	turn := time.Now().Add(wait)
	if j.own {
		if !j.deadline.IsZero() && turn.After(j.deadline) {
			return j.deadline
		}
		return time.Time{}
	}
	if ends, ok := ctx.Deadline(); !ok || !turn.After(ends) {
		return time.Time{}
	}
	info, err := m.inspector.GetTaskInfo(j.queue, j.id)
	if err != nil || info.Deadline.IsZero() || !turn.After(info.Deadline) {
		return time.Time{}
	}
	return info.Deadline
}

// wait gives the task back to asynq until at.
func (m *Middleware) wait(ctx context.Context, j *job, rule string, at time.Time) error {
	if ends := m.deadline(ctx, j, time.Until(at)); !ends.IsZero() {
		at = ends // so that it leaves its queue then, and is not kept longer
	}
	m.observer.Rescheduled(j.queue, time.Until(at))
	limited := newLimited(j, rule, at)
	m.saveWait(ctx, j, at)
	m.checkWhenBack(ctx, j)
	if !j.own {
		if err := asynqx.ExtendLocks(ctx, m.cfg.Redis, []asynqx.Lock{j.lock()}, []time.Time{at}); err != nil {
			m.observer.Failed("lock")
		}
	}
	if j.retried > 0 {
		m.keepText(j, limited)
	}
	return limited
}

// keepText keeps the text of the task's last real failure.
func (m *Middleware) keepText(j *job, limited *Limited) {
	info, err := m.inspector.GetTaskInfo(j.queue, j.id)
	if err != nil {
		m.observer.Failed("last_error")
		return
	}
	if info.LastErr != "" && !asynqx.IsWaiting(info.LastErr) {
		limited.text = info.LastErr
	}
}
