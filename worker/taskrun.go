package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// ReportResponse reports an API's answer to a call from a task's handler, and returns what the answer means. It assumes that the
// answer came from the API of the task's scope in limits.yaml. All workers apply it: if the API says to stay away, no task starts
// in the scope that the answer is about, or below it, until that is over. See throttle.Limiter.Report. If the answer says what the
// call has cost, the run is settled; see Settle. The answer of a language model says so at its end: if `answers` of limits.yaml
// names its vendor, the run is settled when the handler has read the body to its end, or closes it. See package llm.
//
//	resp, err := client.Do(req.WithContext(ctx))
//	…
//	if err := worker.ReportResponse(ctx, resp).Err(); err != nil {
//		return err
//	}
//
// It looks at the first 4 KiB of the body if `answers` of limits.yaml asks for that, and leaves the body as it was. An answer of a
// host that limits.yaml does not list changes no limit. If Redis cannot be reached, only this task stays away. Outside of a handler
// it only reads the answer. Costs the same as Limiter.Report, and as Settle if the answer has costs.
func ReportResponse(ctx context.Context, resp *http.Response) Judgement {
	if r := limitedRun(ctx); r != nil {
		j := r.judge(ctx, r.m.cfg.Limiter.ReadResponse(r.answers(), resp, time.Now()))
		if j.Usage {
			r.m.cfg.Prices.Watch(resp, func(costs policy.Costs) error {
				r.used(ctx, costs)
				return nil
			})
		}
		return j
	}
	return Judgement{Hint: upstream.Reader{}.ReadResponse(resp, time.Now())}
}

// used settles the run by what the answer of a language model says at its end; nil is nothing.
func (r *taskRun) used(ctx context.Context, costs policy.Costs) {
	estimated := func(unit string) bool { return r.job.costs[unit] > 0 }
	if costs == nil && slices.ContainsFunc(policy.UsageUnits(), estimated) {
		if more, due := r.m.repeats.Due("usage "+r.job.scope, time.Now()); due {
			r.m.log.WarnContext(ctx, "answer does not say what it used; its charge stays as it was estimated (streams of OpenAI's chat completions say it "+
				"with stream_options: {include_usage: true})", "scope", r.job.scope, "task_id", r.job.id, "more", more)
		}
	}
	if costs == nil {
		return
	}
	if _, err := Settle(ctx, costs); err != nil {
		r.m.observer.Failed("settle")
	}
}

// ReportStatus is ReportResponse for a client library that shows only the status and the header. The answer counts as that of the
// scope's API, whatever its host.
func ReportStatus(ctx context.Context, status int, header http.Header) Judgement {
	if r := limitedRun(ctx); r != nil {
		return r.judge(ctx, r.m.cfg.Limiter.ReadAnswer(r.answers(), status, header, time.Now()))
	}
	return Judgement{Hint: upstream.Read(status, header, time.Now())}
}

// ReportHint is ReportResponse for an answer that did not come over HTTP, such as a status of gRPC: the caller says what it means.
// upstream.Hint{Failed: true} is a call without an answer: the connection failed, or the API took too long. For the breakers of the
// task's scope it counts as a 5xx does. A handler may instead return an error that is a CallFailer, or that MiddlewareConfig.CallFailed
// classifies.
func ReportHint(ctx context.Context, hint upstream.Hint) Judgement {
	if r := limitedRun(ctx); r != nil {
		return r.judge(ctx, hint)
	}
	return Judgement{Hint: hint}
}

// Judgement is what an API's answer means for the tasks of its scope: Limited, Failed, or neither.
type Judgement struct {
	// Hint is what the answer says.
	upstream.Hint
	// Until is when the pause ends that the answer asks for, by the Redis server's clock; zero if it asks for none.
	Until time.Time
	// Scope is which scope waits, and Rule the rule there that the answer names. Both are empty for an answer that is not Limited,
	// and Rule also where the answer names no rule of limits.yaml.
	Scope, Rule string
}

// Err returns the error for a handler to return: a *RefusedError if the API refuses the call because of a limit, another error if the
// call Failed, and nil otherwise, also for a 404. A handler that returns a *RefusedError, or wraps it, uses up no attempt, unless
// limits.yaml says that such an answer burns one: the task goes back to the front of its queue and comes when the API wants to be
// called again.
func (j Judgement) Err() error {
	switch {
	case j.Failed && j.Status > 0:
		return fmt.Errorf("headway: the API answered %d", j.Status)
	case j.Failed:
		return errors.New("headway: the API gave no answer")
	case !j.Limited:
		return nil
	}
	return &RefusedError{Status: j.Status, RetryAfter: j.Retry, Names: j.Names, known: j.RetryKnown, burns: j.Burns}
}

// RefusedError says that an API refused a call because of a limit of its own. It is a Deferrer.
type RefusedError struct {
	Status int
	// RetryAfter is how long the API asks to stay away, 0 if it does not say.
	RetryAfter time.Duration
	// Names are what the API calls the limits that it is about, as far as it says.
	Names []string

	known, burns bool
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("headway: the API answered %d", e.Status)
	if len(e.Names) > 0 {
		text += " (" + strings.Join(e.Names, ", ") + ")"
	}
	if !e.known {
		return text + " and does not say when to come back"
	}
	return fmt.Sprintf("%s and asks to come back in %s", text, e.RetryAfter)
}

// DeferBy implements Deferrer: the error uses up no attempt, unless limits.yaml says so.
func (e *RefusedError) DeferBy() (wait time.Duration, known, deferred bool) {
	return e.RetryAfter, e.known, !e.burns
}

// RetryIn implements Retrier, for a refusal that burns an attempt.
func (e *RefusedError) RetryIn() (wait time.Duration, known bool) {
	return e.RetryAfter, e.known && e.burns
}

// taskRun is one run of a task, for the functions that its handler calls.
type taskRun struct {
	m     *Middleware
	job   *job
	grant throttle.Grant

	began  time.Time
	latest time.Time // at which it counts as begun at its grant's start; zero if Redis did not grant that
	once   sync.Once // for begun

	mu       sync.Mutex
	paused   bool                // the scope, by the answer of its API
	reported bool                // the handler has reported an answer
	counts   bool                // a refused call counts
	counted  bool                // it has reported how a call ended
	failed   throttle.CallResult // what is known of the breakers after the last call that failed
	spent    policy.Costs        // as settled last; nil: as at its start
	status   int                 // of the last answer that it has reported, 0 for none
}

type runKey struct{}

// asRun returns the context for a handler, and the state of its run.
func (m *Middleware) asRun(ctx context.Context, j *job, g throttle.Grant) (context.Context, *taskRun) {
	start, latest := m.cfg.Limiter.StartOf(g)
	r := &taskRun{m: m, job: j, grant: g, began: time.Now(), latest: latest}
	var late time.Duration
	if !start.IsZero() {
		late = max(0, r.began.Sub(start))
	}
	m.observer.Began(late)
	return context.WithValue(ctx, runKey{}, r), r
}

// begun reports when the run has begun to use its grant, the first time that it is called. A run that began late counts from then
// on, so that its units leave no window too soon. The caller of a handler calls it last: whatever stops the process between the two
// delays the handler unseen, and to start a goroutine, which only a late run needs, invites that.
func (r *taskRun) begun(at time.Time) {
	r.once.Do(func() {
		if r.latest.IsZero() || !at.After(r.latest) {
			return
		}
		r.m.moves.Go(func() {
			if err := r.m.cfg.Limiter.ReportBegun(context.Background(), r.grant, at); err != nil {
				r.m.observer.Failed("late")
			}
		})
	})
}

// ReportSent reports that the request of the running task leaves now. ctx is the context of its handler. A task of type http
// counts for that moment if it is late; any other counts from when its handler is called. Only the first call counts. It does not
// block.
func ReportSent(ctx context.Context) {
	if r, ok := ctx.Value(runKey{}).(*taskRun); ok {
		r.begun(time.Now())
	}
}

// limitedRun returns the run whose handler has ctx, nil outside of one and for a task without a scope.
func limitedRun(ctx context.Context) *taskRun {
	if r, ok := ctx.Value(runKey{}).(*taskRun); ok && r.job.scope != "" {
		return r
	}
	return nil
}

// judge reports an answer of the API of the run's scope, and settles the run by the costs in it.
func (r *taskRun) judge(ctx context.Context, hint upstream.Hint) Judgement {
	out := r.report(ctx, hint)
	r.answered(ctx, hint)
	if len(hint.Costs) > 0 {
		if _, err := Settle(ctx, hint.Costs); err != nil {
			r.m.observer.Failed("settle")
		}
	}
	return Judgement{Hint: hint, Until: out.Until, Scope: out.Scope, Rule: out.Rule}
}

// answers is the scope for which answers are reported.
func (r *taskRun) answers() string { return cmp.Or(r.grant.MemberScope(), r.job.scope) }

// report reports an answer of the API of the run's scope, or of the member of a pool with whose key it was called.
func (r *taskRun) report(ctx context.Context, hint upstream.Hint) throttle.ReportResult {
	hint.Sent = r.began
	out, err := r.m.cfg.Limiter.Report(ctx, r.answers(), hint)
	if err != nil {
		r.m.observer.Failed("report")
		return out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reported, r.counts = true, r.counts || hint.Counts
	r.status = cmp.Or(hint.Status, r.status)
	r.paused = r.paused || !out.Until.IsZero()
	return out
}

// succeeded reports a run that its API has not refused, as its handler has reported no answer: it may be the call that goes
// first after a guessed pause.
func (r *taskRun) succeeded(ctx context.Context) {
	r.mu.Lock()
	reported := r.reported
	r.mu.Unlock()
	if !reported && r.job.scope != "" {
		r.report(ctx, upstream.Hint{Unread: true})
	}
}

// deferred puts back a task that its API has deferred. If its scope is paused, it goes to the front of its queue, ordered by start, and
// comes first when the pause is over. Otherwise it waits for as long as the API asks.
func (m *Middleware) deferred(ctx context.Context, r *taskRun, started throttle.Decision, wait time.Duration) error {
	j, at := r.job, time.Now().Add(wait)
	r.mu.Lock()
	paused := r.paused
	r.mu.Unlock()
	if !paused {
		return m.wait(ctx, j, "", at)
	}
	started.Handed = false // it has begun, and its grant is no longer in flight
	if net := m.back(ctx, j, started); net.After(time.Now()) {
		at = net
	}
	return m.wait(ctx, j, "", at)
}

// settled reports the difference between costs and what was reported before.
func (r *taskRun) settled(costs policy.Costs) {
	u := r.m.cfg.Usage
	if u == nil && r.m.cfg.Record == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spent == nil {
		r.spent = r.job.estimated()
	}
	more := policy.Costs{}
	for unit, n := range costs {
		if d := n - r.spent.Of(unit); d != 0 {
			more[unit], r.spent[unit] = d, n
		}
	}
	if len(more) > 0 && u != nil {
		u.Settled(r.job.scope, r.job.by(r.grant), more)
	}
}

// estimated returns what a task was charged when it started, by unit.
func (j *job) estimated() policy.Costs {
	if len(j.costs) > 0 {
		return maps.Clone(j.costs)
	}
	return policy.Costs{policy.Requests: max(j.cost, 1)}
}

// Settle corrects the charge of the running task to what it has spent. ctx is the context of its handler:
//
//	worker.Settle(ctx, policy.Costs{"tokens": 1830})
//
// A smaller cost is refunded, a larger one charged as a debt. See throttle.Limiter.Settle, whose errors and cost it has. A
// handler may call it as often as it learns more, for example while an answer streams, and whether it then fails or not: each
// attempt of a task is charged anew and settled by itself. A run that is never settled stays charged as estimated. Outside of a
// limited task's run it does nothing.
func Settle(ctx context.Context, costs policy.Costs) (throttle.Settlement, error) {
	r, ok := ctx.Value(runKey{}).(*taskRun)
	if !ok || r.grant.Zero() {
		return throttle.Settlement{}, nil
	}
	got, err := r.m.cfg.Limiter.Settle(ctx, r.grant, costs)
	if err == nil {
		r.settled(costs)
	}
	return got, err
}

// countsRefused reports whether the API counts the call that it has refused.
func (r *taskRun) countsRefused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// settleRefused takes an http task that its API refused out of the quotas of its scope. It is one call; how many calls another
// task has made is for its handler to say.
func (m *Middleware) settleRefused(ctx context.Context, r *taskRun) {
	if r.job.task.Type() != queue.TypeHTTP || r.grant.Zero() || r.countsRefused() {
		return
	}
	if _, err := m.cfg.Limiter.SettleRefused(ctx, r.grant); err != nil {
		m.observer.Failed("settle")
	}
}

// SaveGrant saves the grant of the running task for the duration stay, so that it can be settled
// elsewhere after its handler has ended. ctx is the context of its handler. throttle.Limiter.LoadGrant
// finds it by the task's scope and id. The saved grant of a later attempt replaces it. Errors and cost
// are those of throttle.Limiter.SaveGrant. Outside of a limited task's run it does nothing.
func SaveGrant(ctx context.Context, stay time.Duration) error {
	r, ok := ctx.Value(runKey{}).(*taskRun)
	if !ok || r.grant.Zero() {
		return nil
	}
	return r.m.cfg.Limiter.SaveGrant(ctx, r.grant, r.job.id, stay)
}

// Attempt returns which attempt of its task a handler runs, and how many the task has at most: 1 and 26
// for the first of a task with 25 retries. On the last attempt both are the same. asynq.GetRetryCount and
// asynq.GetMaxRetry do not say so for tasks of package queue, whose max retry in asynq is without a bound.
// To be limited uses up no attempt. A task that MoveTo has moved counts anew, up to the attempts that it
// had left. ctx is the context of the handler; outside of a handler both are 0. It does no I/O.
func Attempt(ctx context.Context) (attempt, budget int) {
	r, is := ctx.Value(runKey{}).(*taskRun)
	if !is {
		return 0, 0
	}
	budget = r.job.allowed + 1
	if r.job.own {
		budget = r.job.budget + 1
	}
	return min(r.job.retried+1, budget), budget // asynq also counts a worker that died before the start
}

// Member returns the alias of the pool's member with which the running task was granted its start: its call is to be made with the key
// of that member. It is empty for a task without a pool, and outside of a handler. ctx is the context of the handler. It does no I/O.
func Member(ctx context.Context) string {
	if r, is := ctx.Value(runKey{}).(*taskRun); is {
		return r.grant.Member()
	}
	return ""
}

// TaskScope returns the scope of the task whose handler has ctx. It is empty for a task without limits, and outside of a handler.
func TaskScope(ctx context.Context) string {
	if r, is := ctx.Value(runKey{}).(*taskRun); is {
		return r.job.scope
	}
	return ""
}
