package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/refusals"
)

// A task that the present limits refuse, or that is for another application, is not lost: it waits for
// a worker or for limits that let it run. Such tasks come back by themselves, at low cost even if
// there are many.
const (
	// appPause is after how long a task comes back that another application's worker may take, and
	// limitsPause after how long one that waits for other limits. Up to half as much is added at
	// random.
	appPause    = time.Second
	limitsPause = 10 * time.Second
)

// refusal returns why the limits refuse a task, as observers receive it, "" for any other error; and
// the key under which such tasks are logged together.
func refusal(err error) (why, of string) {
	var app *policy.AppError
	var cost *policy.CostError
	var unmatched *policy.UnmatchedError
	switch {
	case errors.As(err, &app):
		return "app", app.Level.String()
	case errors.As(err, &unmatched):
		return "unmatched", unmatched.Scope.String()
	case errors.As(err, &cost):
		return "cost", cost.Scope.Provider() + ":" + cost.Rule
	}
	return "", ""
}

// refused puts back a refused task that may run later. It returns false for a task that fails for
// good.
func (t *Middleware) refused(ctx context.Context, j *job, err error) (ended bool, with error) {
	why, of := refusal(err)
	pause := limitsPause
	switch {
	case why == "":
		return false, nil
	case why == "app":
		pause = appPause
		t.dispatcher.Ended(j.ref()) // else it would be dispatched here again and again
	case why == "unmatched" && t.cfg.Limiter.Policy().Unmatched() == policy.UnmatchedFail:
		if t.stands(ctx, j) {
			t.dispatcher.Ended(j.ref())
		}
		return false, nil
	case why == "cost" && t.hopeless(ctx, j, err) && !t.stands(ctx, j): // else it could pass when it got its place
		return false, nil
	}
	if ended, with := t.impatient(ctx, j, throttle.Decision{Binding: -1}, j.deadline); ended {
		return true, with
	}
	at := t.heeding(j, t.returns.Next(time.Now(), pause))
	if !j.deadline.IsZero() && at.After(j.deadline) {
		at = j.deadline
	}
	t.observer.Refused(j.queue, why, time.Until(at))
	j.why = strings.TrimPrefix(strings.TrimPrefix(err.Error(), "throttle: "), "headway: ")
	if why == "unmatched" {
		t.unmatched.Waits(ctx, t.log, refusals.Task{Queue: j.queue, ID: j.id, Type: j.task.Type(), Scope: j.scope, Why: j.why}, at)
	} else {
		t.tellRefused(ctx, j, why, of, err)
	}
	return true, t.wait(ctx, j, "", at)
}

// hopeless reports whether a task that costs too much fails for good.
func (t *Middleware) hopeless(ctx context.Context, j *job, err error) bool {
	if fails := t.cfg.FailRefused; fails != nil {
		return fails(ctx, j.request(), err)
	}
	for _, before := range t.cfg.Limiter.EarlierPolicies() {
		if j.request().Check(before) == nil {
			return false
		}
	}
	return true
}

// stands reports whether a task is in its queue of waiters, or was dispatched. It is also true if that
// cannot be read.
func (t *Middleware) stands(ctx context.Context, j *job) bool {
	if j.scope == "" {
		return false
	}
	queued, granted, err := t.cfg.Limiter.Waitlist().Standing(ctx, j.ref())
	if err != nil {
		t.observer.Failed("overtaken")
	}
	return err != nil || queued || granted
}

// tellRefused logs that tasks wait for such a reason, once a minute for all of one kind.
func (t *Middleware) tellRefused(ctx context.Context, j *job, why, of string, err error) {
	n, due := t.repeats.Due(why+" "+of, time.Now())
	if !due {
		return
	}
	about := []any{"queue", j.queue, "task_id", j.id, "scope", j.scope, "more", n, "reason", err}
	if why == "app" {
		t.log.WarnContext(ctx, "this worker's application may not spend from the scope; its tasks wait for another worker", about...)
		return
	}
	t.log.WarnContext(ctx, "waiting task can never pass under the current limits; it waits for new limits", about...)
}
