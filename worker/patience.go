package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Expired is a task whose patience has ended: it has waited for its limits for longer
// than its own max_wait, or that of a rule which limits it, or can't start before.
type Expired struct {
	// Task is the task; its result writer is the task's own.
	Task *asynq.Task
	// ID and Queue are asynq's, Scope what it spends from.
	ID, Queue, Scope string
	// Rule is the rule that it waits for, and RuleScope the level at which that counts.
	// Both are empty where limits changed so that they can never admit it, and where it is
	// Told; Rule is policy.PausedRule where that level is paused.
	Rule, RuleScope string
	// Told says that it waits until its API wants to be called again; see Told.
	Told bool
	// Waited is how long it has waited since it was due, MaxWait the patience that ended.
	// Waited is below MaxWait where the rules can't admit the task before that is over.
	Waited, MaxWait time.Duration
}

// String tells what the task waited for and how long: "waited 1m2s for rule tenant of
// payments/acme; its max_wait is 1m0s". Scopes may hold customers' names.
func (w Expired) String() string {
	began := "waited " + w.Waited.Round(time.Millisecond).String()
	if w.Waited < w.MaxWait {
		began += " and can't start in time"
	}
	what := " for limits that can never admit it, of " + w.Scope
	switch {
	case w.Told:
		what = ", since the API of " + w.Scope + " says to stay away"
	case w.Rule == "":
	case w.Rule == policy.PausedRule:
		what = " while " + w.RuleScope + " is paused"
	default:
		what = " for rule " + w.Rule + " of " + w.RuleScope
	}
	return fmt.Sprintf("%s%s; its max_wait is %s", began, what, w.MaxWait)
}

// MaxWaitPolicy decides what becomes of a task that has waited too long. It is called when
// such a task is picked up and has to wait on, in the task's goroutine, with asynq's
// context of that pick-up, and again at the next one if it lets the task wait. One that
// panics lets it wait.
//
// Ready ones are WaitOn, Fail, Drop, MoveTo and Fallback. A function of yours chooses
// by calling one of them:
//
//	func(ctx context.Context, w worker.Expired) worker.Action {
//		if w.Task.Type() == "notify" {
//			return worker.Drop(nil)(ctx, w)
//		}
//		return worker.Fail()(ctx, w)
//	}
type MaxWaitPolicy func(ctx context.Context, w Expired) Action

// Action is what a MaxWaitPolicy decided. The zero Action lets the task wait on.
type Action struct {
	became string
	// end ends the task with what the handler is to return; false where it has to wait on.
	end func(ctx context.Context, t *Middleware, j *job, w Expired) (ended bool, with error)
}

// WaitOn lets tasks wait for as long as it takes, as if they had no max_wait.
func WaitOn() MaxWaitPolicy {
	return func(context.Context, Expired) Action { return Action{} }
}

// Fail fails the task for good, whatever retries it has left: asynq archives it with a
// reason that names the rule and how long it waited, and its ErrorHandler is told.
func Fail() MaxWaitPolicy {
	return always(Action{"failed", func(_ context.Context, _ *Middleware, _ *job, w Expired) (bool, error) {
		return true, permanent(fmt.Errorf("headway: %s", w))
	}})
}

// Drop ends the task without running it, without a failure and without a retry. It is
// recorded: a line in Config.Logger, a call of Observer.MaxWaitExceeded, the record
// function if there is one, and, where the task has a retention, a result that is a
// JSON object of "dropped": true, scope, rule, waited_ms and max_wait_ms. asynq counts
// the task as processed.
func Drop(record func(Expired)) MaxWaitPolicy {
	return always(Action{"dropped", func(ctx context.Context, t *Middleware, j *job, w Expired) (bool, error) {
		t.log.InfoContext(ctx, "task dropped: max wait exceeded", "queue", w.Queue, "task_id", w.ID, "type", w.Task.Type(), "why", w.String())
		t.leaveResult(j, w)
		if record != nil {
			record(w)
		}
		return true, nil
	}})
}

// Fallback runs handler instead of the task's own, at once. It spends nothing and keeps
// to no limit. Its error counts as the task's own run: a failure is retried as far as the
// task may be, and the retry is decided on anew.
func Fallback(handler asynq.Handler) MaxWaitPolicy {
	return always(Action{"fallback", func(ctx context.Context, t *Middleware, j *job, _ Expired) (bool, error) {
		return true, t.run(ctx, j, handler, throttle.Decision{})
	}})
}

func always(v Action) MaxWaitPolicy {
	return func(context.Context, Expired) Action { return v }
}

// dropped is the result of a task that was dropped.
type dropped struct {
	Dropped   bool   `json:"dropped"`
	Scope     string `json:"scope"`
	Rule      string `json:"rule"`
	WaitedMS  int64  `json:"waited_ms"`
	MaxWaitMS int64  `json:"max_wait_ms"`
}

// leaveResult writes the result that asynq keeps for as long as the task's retention.
func (t *Middleware) leaveResult(j *job, w Expired) {
	out := j.task.ResultWriter()
	if out == nil {
		return
	}
	result, err := json.Marshal(dropped{true, w.Scope, w.Rule, w.Waited.Milliseconds(), w.MaxWait.Milliseconds()})
	if err == nil {
		_, err = out.Write(result)
	}
	if err != nil {
		t.observer.Failed("patience")
	}
}

// impatient ends a task that was denied and has waited too long, if its OnMaxWait says so.
// A deadline that comes before the end of its patience counts first.
func (t *Middleware) impatient(ctx context.Context, j *job, d throttle.Decision, deadline time.Time) (ended bool, with error) {
	w, over := t.waited(ctx, j, d)
	if !over || !deadline.IsZero() && deadline.Before(t.ours(j.scope, j.since.Add(w.MaxWait))) {
		return false, nil
	}
	verdict := t.judge(ctx, w)
	if verdict.end == nil {
		return false, nil
	}
	if ended, with = verdict.end(ctx, t, j, w); ended {
		t.observer.MaxWaitExceeded(j.queue, verdict.became, w.Waited)
	}
	// One that is retried keeps its place, and so does one that is put off or carried on.
	if ended && (with == nil || errors.Is(with, asynq.SkipRetry) || verdict.became == becameMoved) {
		t.dispatcher.Ended(j.ask().Ref())
	}
	return ended, with
}

// tired ends a task that its API has put off and that would wait for longer than it may, if its
// OnMaxWait says so.
func (t *Middleware) tired(ctx context.Context, j *job, d throttle.Decision, wait time.Duration) (ended bool, with error) {
	d.Paused, d.RetryAfter = true, wait
	return t.impatient(ctx, j, d, time.Time{})
}

// judge asks the user's function, which must not take the worker down.
func (t *Middleware) judge(ctx context.Context, w Expired) (verdict Action) {
	defer func() {
		if x := recover(); x != nil {
			t.observer.Failed("patience")
			t.log.ErrorContext(ctx, "Config.OnMaxWait panicked; the task keeps waiting", "queue", w.Queue, "task_id", w.ID,
				"panic", fmt.Sprint(x), "stack", string(debug.Stack()))
			verdict = Action{}
		}
	}()
	return t.cfg.OnMaxWait(ctx, w)
}

// clockLate is by how much the moment may be later than Redis's clock is known to show, which is the shortest
// time that a reply takes. asynq brings a task back when its patience ends, and then in a second or two.
const clockLate = 50 * time.Millisecond

// waited tells how long a denied task has waited, and whether its patience is over. It
// notes in the job since when it waits and what bounds that.
func (t *Middleware) waited(ctx context.Context, j *job, d throttle.Decision) (w Expired, over bool) {
	if t.cfg.OnMaxWait == nil || !j.bound(d) {
		return w, false
	}
	j.since = t.since(ctx, j)
	binding, _ := d.BindingRule()
	w = Expired{
		Task: j.task, ID: j.id, Queue: j.queue, Scope: j.scope,
		Rule: binding.Rule, RuleScope: binding.Scope, Told: d.Paused, Waited: max(0, t.now(j.scope).Sub(j.since)),
	}
	least, _ := earliest(d)
	ended := func(most, more time.Duration) bool {
		if left := most - w.Waited; left > 0 && left <= clockLate {
			w.Waited = most
		}
		return most > 0 && (w.Waited >= most || more > most-w.Waited) && (w.MaxWait == 0 || most < w.MaxWait)
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if limits := r.Limited || i == d.Binding || d.Paused; limits && ended(r.MaxWait, least) {
			w.MaxWait, w.Rule, w.RuleScope = r.MaxWait, r.Rule, r.Scope
		}
	}
	if d.Paused { // whosever max_wait it is
		w.Rule, w.RuleScope = "", ""
	}
	if ended(j.maxWait, least) {
		w.MaxWait, w.Rule, w.RuleScope = j.maxWait, binding.Rule, binding.Scope
	}
	return w, w.MaxWait > 0
}

// bound tells whether a max_wait bounds the task's wait, and notes which ones do or may:
// any rule on the path may come to be the one that limits it.
func (j *job) bound(d throttle.Decision) bool {
	j.bounds = j.bounds[:0]
	if j.maxWait > 0 {
		j.bounds = append(j.bounds, j.maxWait)
	}
	for i := range d.Rules {
		if most := d.Rules[i].MaxWait; most > 0 {
			j.bounds = append(j.bounds, most)
		}
	}
	return len(j.bounds) > 0
}

// earliest is how long a denied task is known to wait on under the limits as they are, and
// the rule that asks for it: a place under a concurrency rule may come free at any moment,
// long before its lease ends, what waits before the task in line may go, and a pause may be
// lifted by hand.
func earliest(d throttle.Decision) (wait time.Duration, by throttle.RuleState) {
	by, _ = d.BindingRule()
	places := by.Paused
	for _, r := range d.Rules {
		switch {
		case !r.Limited || r.Paused:
		case r.Algorithm == policy.Concurrency:
			places = true
		case r.RetryAfter != throttle.Never && r.RetryAfter > wait:
			wait, by = r.RetryAfter, r
		}
	}
	if !places && d.RetryAfter != throttle.Never && d.RetryAfter > wait {
		wait = d.RetryAfter // of all rules together
		by, _ = d.BindingRule()
	}
	return wait, by
}

// heeding is at, or when the task's patience ends, if that is sooner and still to come: so
// asynq brings it back even if nobody else does.
func (t *Middleware) heeding(j *job, at time.Time) time.Time {
	if j.since.IsZero() {
		return at
	}
	for _, most := range j.bounds {
		if ends := t.ours(j.scope, j.since.Add(most)); ends.Before(at) && ends.After(time.Now()) {
			at = ends
		}
	}
	return at
}

// since is when the task's wait began. One of our own that has not failed carries it.
// Any other's is when it was first limited, or put off by its API, since its last real failure.
func (t *Middleware) since(ctx context.Context, j *job) time.Time {
	if j.carriesDue() {
		return j.due
	}
	if at := t.sinceKept(ctx, j); !at.IsZero() {
		return at
	}
	return t.now(j.scope)
}

// now is by Redis's clock, which waits go by: that of a worker may be set while its tasks wait.
func (t *Middleware) now(scope string) time.Time { return t.cfg.Limiter.Waitlist().ServerNow(scope) }

// ours is when a moment of Redis's clock comes by this process's, or up to clockLate before: asynq rounds it up to a second.
func (t *Middleware) ours(scope string, at time.Time) time.Time {
	return time.Now().Add(at.Sub(t.now(scope)) - clockLate)
}

func (j *job) carriesDue() bool { return j.own && j.retried == 0 && !j.due.IsZero() }
