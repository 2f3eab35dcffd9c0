package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/redishealth"
)

// errMissed says that a run has not begun: the system stopped this process after the limiter had found its start in time.
var errMissed = errors.New("headway: its start has passed")

// run lets next process a task that may start now. Its places are freed when the run has ended, even by a panic, and only then.
func (m *Middleware) run(ctx context.Context, j *job, next asynq.Handler, d throttle.Decision) (err error) {
	defer m.recoverPanic(ctx, j, &err)
	j.slot.Runs()
	claim := func() {} // before another worker can pick the task up
	if d.Handed {
		claim = m.dispatcher.Claim(j.ref())
	}
	defer func() { claim() }()
	ended := m.started(ctx, j, d)
	defer func() { ended(err) }()
	asynqs := ctx
	ctx, cancel := j.bounded(ctx, m.cfg.MaxTimeout)
	defer cancel()
	ctx, lease := m.cfg.Limiter.Lease(ctx, d.Grant)
	defer m.observeLeases(d)()
	defer func() {
		if err := lease.Release(ctx); err != nil {
			m.observer.Failed("release")
			if more, due := m.repeats.Due("place", time.Now()); due {
				m.log.WarnContext(ctx, "cannot release a lease in redis; retrying until it expires", "queue", j.queue, "task_id", j.id, "more", more, "error", err)
			}
		}
	}()
	if d.Allowed { // else it spends nothing: it has no scope, or a fallback runs for it
		if !m.cfg.Limiter.InTime(d) {
			return errMissed
		}
		m.spent(j, d.Grant)
	}

	began, outcome := time.Now(), "failed"                                      // "failed" is also the outcome of a panic
	defer func() { m.observer.Ran(ctx, j.queue, outcome, time.Since(began)) }() // by then ctx has the run's trace
	defer func() { m.ended(j, d.Grant, outcome) }()
	ctx, traced := m.traceRun(ctx, j)
	defer func() { traced(outcome, err) }()
	seen, run := m.asRun(ctx, j, d.Grant)
	defer func() { run.record(outcome) }()
	if j.task.Type() != queue.TypeHTTP { // else the handler says when the request was written
		run.begun(time.Now())
	}
	defer run.begun(began)
	if err = next.ProcessTask(seen, j.task); err == nil {
		run.succeeded(asynqs)
	}
	wait, deferred := deferredBy(err)
	if !deferred {
		run.ended(asynqs, err)
	}
	if pause, keeps := run.keepsAttempt(err); deferred || keeps {
		outcome = "deferred"
		claim()
		if deferred {
			m.settleRefused(asynqs, run)
		} else {
			wait = pause
		}
		if ended, with := m.endDeferred(asynqs, j, d, wait); ended {
			return with
		}
		if m.mayDefer(asynqs, j) {
			return m.deferred(asynqs, run, d, wait)
		}
		outcome = "failed"
	}
	if lost := context.Cause(ctx); errors.Is(lost, throttle.ErrLeaseLost) {
		outcome = "lost"
		if err != nil {
			err = errors.Join(err, lost)
		}
	} else if err == nil {
		outcome = "ok"
	}
	return m.applyBudget(j, err)
}

// spent reports what a starting task spends. A start that came too late was refunded before, and is no run.
func (m *Middleware) spent(j *job, g throttle.Grant) {
	if m.cfg.Usage == nil {
		return
	}
	by := j.by(g)
	if len(j.costs) == 0 {
		m.cfg.Usage.Spent(j.scope, by, max(j.cost, 1))
		return
	}
	m.cfg.Usage.SpentCosts(j.scope, by, j.costs)
}

// ended reports a run that did not succeed.
func (m *Middleware) ended(j *job, g throttle.Grant, outcome string) {
	how := usage.Ends{Failed: 1}
	switch {
	case m.cfg.Usage == nil || j.scope == "" || outcome == "ok":
		return
	case outcome == "deferred":
		how = usage.Ends{Refused: 1}
	}
	m.cfg.Usage.Ended(j.scope, j.by(g), how)
}

// by returns the fields of usage except the application.
func (j *job) by(g throttle.Grant) usage.By {
	return usage.By{Queue: j.queue, Type: j.task.Type(), EnqueuedBy: queue.EnqueuedBy(j.task), Member: g.MemberScope()}
}

// bounded returns a context with the run's deadline and its time-out, counted from its start. If most
// is not 0, no run takes longer.
func (j *job) bounded(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	all := func() {}
	if most > 0 {
		cause := fmt.Errorf("no run may take longer than %s here", most)
		ctx, all = context.WithTimeoutCause(ctx, most, cause)
	}
	ends := j.deadline
	if j.timeout > 0 {
		if at := time.Now().Add(j.timeout); ends.IsZero() || at.Before(ends) {
			ends = at
		}
	}
	if ends.IsZero() {
		return ctx, all
	}
	ctx, own := context.WithDeadline(ctx, ends)
	return ctx, func() { own(); all() }
}

// applyBudget ends a task of package queue that has used up its retry budget. asynq would retry it for
// ever: its max retry is unlimited.
func (m *Middleware) applyBudget(j *job, err error) error {
	if err == nil || !j.own || !j.last() || !m.isFailure(err) ||
		errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return err
	}
	return &finalError{err}
}

// recoverPanic converts a panic on a task's last attempt into an error. Any other panic is left to
// asynq, which would retry a task of package queue for ever.
func (m *Middleware) recoverPanic(ctx context.Context, j *job, err *error) {
	if !j.own || !j.last() {
		return
	}
	if x := recover(); x != nil {
		m.log.ErrorContext(ctx, "handler panicked", "queue", j.queue, "task_id", j.id,
			"panic", fmt.Sprint(x), "stack", redishealth.Stack(string(debug.Stack())))
		*err = &finalError{fmt.Errorf("panic: %v", x)}
	}
}

func (m *Middleware) observeLeases(d throttle.Decision) func() {
	each := func(delta int) {
		for _, r := range d.Rules {
			if r.Algorithm == policy.Concurrency && !d.Grant.Zero() {
				m.observer.LeaseHeld(r.Pattern+":"+r.Rule, delta)
			}
		}
	}
	each(1)
	return func() { each(-1) }
}

// A task of package queue that a crash interrupted comes back with one more failure in asynq's count, whether or not it had started. If
// it was killed before its start it must run again; if on its last attempt it must not. So a last attempt has a mark from just before
// its start until its end, which remains after a crash.
const (
	markStay = 5 * time.Minute // longer than asynq takes to bring a killed task back
	markBeat = time.Minute
	// markEnd is how long the mark remains of an attempt that asynq ended before its handler did:
	// longer than asynq waits before a retry.
	markEnd = 48 * time.Hour
)

func markKey(j *job) string { return "hw:run:{" + j.queue + "}:" + j.id }

// checkExpired rejects a task that may not run any more: its deadline has passed, or it was killed during its last attempt.
func (m *Middleware) checkExpired(ctx context.Context, j *job) error {
	if !j.deadline.IsZero() && !time.Now().Before(j.deadline) {
		return fmt.Errorf("headway: its deadline of %s has passed", j.deadline.UTC().Format(time.RFC3339))
	}
	if !j.own || j.retried <= j.budget {
		return nil
	}
	marked, err := redisread.One(ctx, m.cfg.Redis, func(p redis.Pipeliner) *redis.IntCmd { return p.Exists(ctx, markKey(j)) })
	if err == nil && marked.Val() > 0 {
		return fmt.Errorf("headway: a crash ended its last attempt of %d", j.budget+1)
	}
	return nil
}

func (m *Middleware) unmark(ctx context.Context, j *job) {
	if err := m.cfg.Redis.Del(ctx, markKey(j)).Err(); err != nil {
		m.observer.Failed("mark")
	}
}

// marksBefore has a task's start wait for the mark of a last attempt. Redis has the mark before the run can
// reach an API, so a crash a moment later does not let the task run again.
func (m *Middleware) marksBefore(ctx context.Context, j *job, req *throttle.Request) (undo func()) {
	if !j.marks() {
		return func() {}
	}
	req.BeforeStart = func() {
		began := time.Now()
		j.marked = m.mark(context.WithoutCancel(ctx), j, markStay)
		m.dispatcher.Marked(time.Since(began))
	}
	return func() {
		if j.marked {
			m.unmark(context.WithoutCancel(ctx), j)
			j.marked = false
		}
	}
}

// started keeps the mark of a last attempt while it runs. The run waits for a missing mark only if it
// has no start to be late for; else Redis did not take the mark in time, and takes it as the run begins.
// The end of the run waits until the mark was set, else the two calls could arrive in any order.
func (m *Middleware) started(asynqs context.Context, j *job, d throttle.Decision) (ended func(err error)) {
	if !j.marks() {
		return func(error) {}
	}
	if !d.Allowed {
		j.marked = m.mark(context.WithoutCancel(asynqs), j, markStay)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(asynqs))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !j.marked {
			m.mark(context.WithoutCancel(asynqs), j, markStay)
		}
		beat := time.NewTicker(markBeat)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
				m.mark(ctx, j, markStay)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(err error) {
		stop()
		<-done
		ctx := context.WithoutCancel(asynqs)
		if asynqs.Err() != nil {
			m.mark(ctx, j, markEnd) // asynq has counted a failure already, and ignores what we return
			return
		}
		if isFinal(err) {
			asynqx.ClientOf(asynqs).OnEnd(j.queue, j.id, func() { m.unmark(ctx, j) })
			return
		}
		m.unmark(ctx, j)
	}
}

// isFinal reports whether a last attempt that ends with err is final. A panic, which has no error yet,
// is. A deferral uses up no attempt: a crash must not end the task.
func isFinal(err error) bool {
	return err == nil || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask)
}

func (m *Middleware) mark(ctx context.Context, j *job, stay time.Duration) bool {
	err := m.cfg.Redis.Set(ctx, markKey(j), 1, stay).Err()
	if err != nil && ctx.Err() == nil {
		m.observer.Failed("mark")
	}
	return err == nil
}
