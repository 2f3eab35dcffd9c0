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
	"github.com/headway-go/headway/worker/internal/redishealth"
)

// Expired is a task whose max wait has passed: it has waited for its limits for longer than its own
// max_wait or that of a rule that limits it, or it cannot start before.
type Expired struct {
	// Task is the task; its result writer is the task's own.
	Task *asynq.Task
	// ID and Queue are asynq's. Scope is what the task spends from.
	ID, Queue, Scope string
	// Rule is the rule that the task waits for, and RuleScope the level at which it counts. Both are empty if changed limits can
	// never admit the task, and if ByAPI is set. Rule is policy.PausedRule if that level is paused.
	Rule, RuleScope string
	// ByAPI is true if the task waits because its API asked not to be called; see ReportResponse.
	ByAPI bool
	// Waited is how long the task has waited since it was due, MaxWait the max wait that has passed.
	// Waited is below MaxWait if the rules cannot admit the task in time.
	Waited, MaxWait time.Duration
}

// String returns what the task waited for, and for how long: "waited 1m2s for rule tenant of
// payments/acme; its max_wait is 1m0s". Scopes may contain customers' names.
func (w Expired) String() string {
	began := "waited " + w.Waited.Round(time.Millisecond).String()
	if w.Waited < w.MaxWait {
		began += " and can't start in time"
	}
	what := " for limits that can never admit it, of " + w.Scope
	switch {
	case w.ByAPI:
		what = ", since the API of " + w.Scope + " is not called now"
	case w.Rule == "":
	case w.Rule == policy.PausedRule:
		what = " while " + w.RuleScope + " is paused"
	default:
		what = " for rule " + w.Rule + " of " + w.RuleScope
	}
	return fmt.Sprintf("%s%s; its max_wait is %s", began, what, w.MaxWait)
}

// MaxWaitPolicy decides what happens to a task that has waited too long. It is called when such a task is picked up and would
// have to wait on, in the task's goroutine, with asynq's context of that pick-up. It is called again at the next pick-up if it
// lets the task wait. If it panics, the task waits.
//
// Fail, Drop, MoveTo and Fallback return ready ones. A function of yours chooses among them by calling one:
//
//	func(ctx context.Context, w worker.Expired) worker.Action {
//		if w.Task.Type() == "notify" {
//			return worker.Drop(nil)(ctx, w)
//		}
//		return worker.Fail()(ctx, w)
//	}
type MaxWaitPolicy func(ctx context.Context, w Expired) Action

// Action is the result of a MaxWaitPolicy. The zero Action lets the task wait on.
type Action struct {
	became string
	// end ends the task with the result of the handler; it returns false if the task must wait on.
	end func(ctx context.Context, m *Middleware, j *job, w Expired) (ended bool, with error)
}

// Fail fails the task for good, however many retries it has left. asynq archives it with a reason that
// names the rule and how long it waited, and calls its ErrorHandler.
func Fail() MaxWaitPolicy {
	return always(Action{"failed", func(_ context.Context, _ *Middleware, _ *job, w Expired) (bool, error) {
		return true, permanent(fmt.Errorf("headway: %s", w))
	}})
}

// Drop ends the task without running it, without a failure and without a retry. The drop is recorded: a line in Config.Logger, a
// call of Observer.MaxWaitExceeded, a call of record if that is not nil, and, if the task has a retention, a result that is a
// JSON object of "dropped": true, scope, rule, waited_ms and max_wait_ms. asynq counts the task as processed.
func Drop(record func(Expired)) MaxWaitPolicy {
	return always(Action{"dropped", func(ctx context.Context, m *Middleware, j *job, w Expired) (bool, error) {
		m.log.InfoContext(ctx, "task dropped: max wait exceeded", "queue", w.Queue, "task_id", w.ID, "type", w.Task.Type(), "why", w.String())
		m.leaveResult(j, w)
		if record != nil {
			record(w)
		}
		return true, nil
	}})
}

// Fallback runs handler instead of the task's own, at once. The run spends nothing and ignores all limits. Its error counts as
// that of the task's own run: a failure is retried while the task has retries, and the retry is decided on anew.
func Fallback(handler asynq.Handler) MaxWaitPolicy {
	return always(Action{"fallback", func(ctx context.Context, m *Middleware, j *job, _ Expired) (bool, error) {
		return true, m.run(ctx, j, handler, throttle.Decision{})
	}})
}

func always(a Action) MaxWaitPolicy { return func(context.Context, Expired) Action { return a } }

// dropped is the result of a dropped task.
type dropped struct {
	Dropped   bool   `json:"dropped"`
	Scope     string `json:"scope"`
	Rule      string `json:"rule"`
	WaitedMS  int64  `json:"waited_ms"`
	MaxWaitMS int64  `json:"max_wait_ms"`
}

// leaveResult writes the result that asynq keeps for the task's retention.
func (m *Middleware) leaveResult(j *job, w Expired) {
	out := j.task.ResultWriter()
	if out == nil {
		return
	}
	result, err := json.Marshal(dropped{true, w.Scope, w.Rule, w.Waited.Milliseconds(), w.MaxWait.Milliseconds()})
	if err == nil {
		_, err = out.Write(result)
	}
	if err != nil {
		m.observer.Failed("patience")
	}
}

// endExpired ends a denied task that has waited too long, if its OnMaxWait decides so. A deadline
// before the end of the max wait takes precedence.
func (m *Middleware) endExpired(ctx context.Context, j *job, d throttle.Decision, deadline time.Time) (ended bool, with error) {
	w, over := m.waited(ctx, j, d)
	if !over || !deadline.IsZero() && deadline.Before(m.toLocal(j.scope, j.since.Add(w.MaxWait))) {
		return false, nil
	}
	action := m.decideExpired(ctx, w)
	if action.end == nil {
		return false, nil
	}
	if ended, with = action.end(ctx, m, j, w); ended {
		m.observer.MaxWaitExceeded(j.queue, action.became, w.Waited)
	}
	// A task that is retried, deferred or re-enqueued keeps its place.
	if ended && (with == nil || errors.Is(with, asynq.SkipRetry) || action.became == becameMoved) {
		m.dispatcher.Ended(j.ref())
	}
	return ended, with
}

// endDeferred ends a task that its API has deferred and that would exceed its max wait, if its OnMaxWait decides so.
func (m *Middleware) endDeferred(ctx context.Context, j *job, d throttle.Decision, wait time.Duration) (ended bool, with error) {
	d.Paused, d.RetryAfter = true, wait
	return m.endExpired(ctx, j, d, time.Time{})
}

// decideExpired calls the user's function, which must not end the process.
func (m *Middleware) decideExpired(ctx context.Context, w Expired) (action Action) {
	defer func() {
		if x := recover(); x != nil {
			m.observer.Failed("patience")
			m.log.ErrorContext(ctx, "Config.OnMaxWait panicked; the task keeps waiting", "queue", w.Queue, "task_id", w.ID,
				"panic", fmt.Sprint(x), "stack", redishealth.Stack(string(debug.Stack())))
			action = Action{}
		}
	}()
	return m.cfg.OnMaxWait(ctx, w)
}

// clockLate bounds how much Redis's clock may be ahead of what is known of it. asynq brings a task back when its max wait ends; if that
// is too early, the next time is a second or two later.
const clockLate = 50 * time.Millisecond

// waited returns how long a denied task has waited, and whether its max wait is over. It records in
// the job when the wait began and what bounds it.
func (m *Middleware) waited(ctx context.Context, j *job, d throttle.Decision) (w Expired, over bool) {
	if m.cfg.OnMaxWait == nil || !j.bound(d) {
		return w, false
	}
	j.since = m.since(ctx, j)
	binding, _ := d.BindingRule()
	w = Expired{
		Task: j.task, ID: j.id, Queue: j.queue, Scope: j.scope,
		Rule: binding.Rule, RuleScope: binding.Scope, ByAPI: d.Paused, Waited: max(0, m.now(j.scope).Sub(j.since)),
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
	if d.Paused { // whichever rule the max_wait belongs to
		w.Rule, w.RuleScope = "", ""
	}
	if ended(j.maxWait, least) {
		w.MaxWait, w.Rule, w.RuleScope = j.maxWait, binding.Rule, binding.Scope
	}
	return w, w.MaxWait > 0
}

// bound reports whether a max_wait bounds the task's wait, and records all that may: any rule on the path can become the binding one.
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

// earliest returns how long a denied task must at least wait on under the present limits, and the rule that requires it. Some waits have
// no known end: a place under a concurrency rule may be freed long before its lease ends, and a pause may be lifted by hand.
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

// byMaxWait returns at, or the end of the task's max wait if that is earlier and still to come: asynq then brings the task back.
func (m *Middleware) byMaxWait(j *job, at time.Time) time.Time {
	if j.since.IsZero() {
		return at
	}
	for _, most := range j.bounds {
		if ends := m.toLocal(j.scope, j.since.Add(most)); ends.Before(at) && ends.After(time.Now()) {
			at = ends
		}
	}
	return at
}

// since returns when the task's wait began. A task of package queue that has not failed carries that time. For any other it is when the
// task was first limited, or deferred by its API, since its last real failure.
func (m *Middleware) since(ctx context.Context, j *job) time.Time {
	if j.headerHasDue() {
		return j.due
	}
	if at := m.loadWait(ctx, j); !at.IsZero() {
		return at
	}
	return m.now(j.scope)
}

// now returns the time by Redis's clock, which waits use: a worker's clock may be set while its tasks wait.
func (m *Middleware) now(scope string) time.Time { return m.cfg.Limiter.ServerNow(scope) }

// toLocal converts a moment of Redis's clock to this process's, up to clockLate early: asynq rounds it up to a second.
func (m *Middleware) toLocal(scope string, at time.Time) time.Time {
	return time.Now().Add(at.Sub(m.now(scope)) - clockLate)
}

func (j *job) headerHasDue() bool { return j.own && j.retried == 0 && !j.due.IsZero() }
