package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// A task that the limits refuse as they are, or that is for another application, is not lost:
// it waits for a worker, or for limits, that let it run. Such tasks come back by themselves,
// and however many there are that costs little.
const (
	// appPause is how soon one comes back that another application's worker may take, and
	// limitsPause one that waits for other limits. Each is up to half as much longer.
	appPause    = time.Second
	limitsPause = 10 * time.Second
	// refusedApart is how far apart the times are at which they come back to this process, as
	// far as none waits for longer than refusedMost; beyond that each waits up to twice as long.
	refusedApart = 50 * time.Millisecond
	refusedMost  = 30 * time.Second
)

// RefusedObserver is an Observer that is also told of tasks that the limits refuse as they are.
type RefusedObserver interface {
	// Refused reports a task that was put back for wait, since limits must change first, or a worker pick
	// it up that may run it. why is "app" (its scope is for other applications), "unmatched"
	// (its scope meets no rule) or "cost" (it costs more than a rule can admit).
	Refused(queue, why string, wait time.Duration)
}

// refusal is why the limits refuse a task, as observers are told, "" for any other error; and
// what all have in common that are told of as one.
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

// refused puts a task back that was refused and may run some day. It returns false for one
// that fails for good.
func (t *Middleware) refused(ctx context.Context, j *job, err error) (ended bool, with error) {
	why, of := refusal(err)
	pause := limitsPause
	switch {
	case why == "":
		return false, nil
	case why == "app":
		pause = appPause
		t.restore(ctx, j)
	case why == "unmatched" && t.cfg.Limiter.Policy().Unmatched() == policy.UnmatchedFail:
		if t.stands(ctx, j) {
			t.dispatcher.Ended(j.ask().Ref())
		}
		return false, nil
	case t.hopeless(ctx, j, err) && !t.stands(ctx, j): // else it could pass when it got its place
		return false, nil
	}
	if ended, with := t.impatient(ctx, j, throttle.Decision{Binding: -1}, j.deadline); ended {
		return true, with
	}
	at := t.heeding(j, t.returns.next(time.Now(), pause))
	if !j.deadline.IsZero() && at.After(j.deadline) {
		at = j.deadline
	}
	if o, asks := t.observer.(RefusedObserver); asks {
		o.Refused(j.queue, why, time.Until(at))
	}
	if why == "unmatched" {
		t.unmatched.waits(ctx, t.log, j, at)
	} else {
		t.tellRefused(ctx, j, why, of, err)
	}
	j.why = strings.TrimPrefix(err.Error(), "throttle: ")
	return true, t.wait(ctx, j, "", at)
}

// hopeless tells whether a task that was refused fails for good.
func (t *Middleware) hopeless(ctx context.Context, j *job, err error) bool {
	if fails := t.cfg.FailRefused; fails != nil {
		return fails(ctx, j.ask(), err)
	}
	if !errors.As(err, new(*policy.CostError)) {
		return false
	}
	for _, before := range t.cfg.Limiter.EarlierPolicies() {
		if j.ask().Check(before) == nil {
			return false
		}
	}
	return true
}

// stands tells whether a task stands in line, or was released: also where that can't be told.
func (t *Middleware) stands(ctx context.Context, j *job) bool {
	stands, err := t.cfg.Limiter.Waitlist().IsQueued(ctx, j.ask())
	if err != nil {
		t.observer.Failed("overtaken")
	}
	return err != nil || stands
}

// restore gives a task whose turn had come, and that this application may not run, its place
// back, and lets those know who may.
func (t *Middleware) restore(ctx context.Context, j *job) {
	restored, err := t.cfg.Limiter.Waitlist().Restore(ctx, t.request(j))
	if err == nil && restored {
		err = t.cfg.Limiter.Waitlist().PublishActive(ctx, dispatch.Provider(j.scope))
	}
	if err != nil {
		t.observer.Failed("rejoin")
	}
}

// tellRefused logs that tasks wait so, once a minute for all of one kind.
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

// returns spaces out when refused tasks come back. It is safe for concurrent use.
type returns struct {
	mu   sync.Mutex
	last time.Time // the furthest that is spoken for
}

// next is when a task comes back that is put back now.
func (r *returns) next(now time.Time, pause time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Before(now) {
		r.last = now
	}
	r.last = r.last.Add(refusedApart)
	if most := now.Add(refusedMost); r.last.After(most) {
		r.last = most
		return most.Add(rand.N(refusedMost)) // there are too many: each comes once a minute or so
	}
	at := now.Add(pause + rand.N(pause/2))
	if at.Before(r.last) {
		at = r.last
	}
	return at
}
