package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// State is the outcome of enqueuing a task.
type State string

// The states of a Result.
const (
	Enqueued  State = "enqueued"  // it waits in its queue
	Duplicate State = "duplicate" // its id is taken; nothing was changed
	Invalid   State = "invalid"   // refused, and would be refused again
	Failed    State = "failed"    // Redis refused, or did not answer: the task may have been enqueued
	Valid     State = "valid"     // only of a Forecast: the task would be enqueued
)

// Result is the outcome for one task.
type Result struct {
	Line  int    // the Entry's; 0 outside a batch
	ID    string // empty if the line could not be read
	Queue string
	State State
	// Waits reports that the task has a place in the queue of its scope. Start is its expected start; zero
	// if no clock determines it, and without a Limiter.
	Waits bool
	Start time.Time
	// Ahead is the number of tasks of its scope that were before it when it got its place, and WaitsFor the
	// rule that was expected to admit it last, as throttle.Joined has it; do not change it. Only for an
	// Enqueued task that Waits: -1 and nil if they are not known.
	Ahead    int64
	WaitsFor *throttle.RuleInfo
	// StartFrom and StartTo are, in a Forecast and with ClientConfig.Inspect, the bounds (in 19 of 20 cases)
	// of a Start that rests on how long runs take under a concurrency rule; otherwise zero.
	StartFrom, StartTo time.Time
	// Reason and Binding are, in a Forecast and with ClientConfig.Inspect, what the Start waits for, or why
	// it is unknown. They are empty if the task starts at once.
	Reason  Reason
	Binding Binding
	// Expires names what ends before Start, in a Forecast: "deadline" or "max_wait". Empty if neither does,
	// and if Start is unknown.
	Expires string
	// Archived reports, for a Duplicate, that the task with this id has failed for good: it is in asynq's
	// archive, and runs only on request, as with worker tasks run.
	Archived bool
	// Random reports that this package drew the id: enqueuing the task once more makes a second task.
	Random bool
	// AppScope is the lowest level of the task's scope that the policy restricts to some applications
	// (Policy.Apps): the task waits for a worker of one of them. Empty if all may spend.
	AppScope string
	// Misspelt is a unit of the task's costs that no rule of its scope counts, and Meant the unit of a rule that is spelt alike. Both
	// are empty if there is none.
	Misspelt, Meant string
	// Timeout is the run time that the task's own Timeout allows; 0 for no limit. Workers may allow less.
	Timeout time.Duration
	// Err is nil if Enqueued or Duplicate, an *InvalidError if Invalid, and otherwise wraps Redis's error.
	Err error
}

// ClientConfig configures a Client. The zero ClientConfig is ready to use.
type ClientConfig struct {
	// Policy is the policy that tasks are checked against before they are enqueued: a task is refused if no rule matches its
	// scope, or if its cost can never be admitted. Defaults to nil: only workers check scopes and costs.
	Policy *policy.Policy
	// Limiter gives tasks of an exhausted limit their places in the queue of their scope at once, so that they do not block
	// others in their asynq queue. It must share its policy and its state in Redis with the workers'; its policy is used if
	// Policy is nil. Defaults to nil: a task gets its place once a worker has picked it up.
	Limiter *throttle.Limiter
	// AllowMethods lists methods that tasks of type "http" may use besides those of RFC 9110 and PATCH,
	// such as "PROPFIND"; it must match the workers' outbound.Config.AllowMethods, or -allow-method.
	// CONNECT and TRACE are always refused. Defaults to none.
	AllowMethods []string
	// Within restricts tasks from another author to a scope and the levels below it. Defaults to nil: any
	// scope, one id space for all, any priority.
	Within *Within
	// App is the name of the application that enqueues. Tasks carry it in HeaderApp, and worker inspect
	// usage reports usage by it. Only the first 128 bytes count. Defaults to none.
	App string
	// Inspect makes Enqueue read what a task waits for, and EnqueueBatch, for its Summary alone, the starts
	// of tasks that wait for runs to end. Costs one to three round trips for a task, and in a batch for each
	// scope, queue and priority of such tasks, 64 at most. What cannot be read stays unknown.
	Inspect bool
	// OnEnqueue is called with each valid task, which has its defaults and its id, before it is enqueued. The task gets the
	// returned headers, such as the context of a trace (see package worker/oteltask), except names that begin with "headway-".
	// The returned function, unless nil, is called once with the task's Result. Neither may block; EnqueueBatch calls OnEnqueue
	// in another goroutine. With it, a task that waits also carries HeaderExpected and HeaderWaitsFor. Defaults to none.
	OnEnqueue func(ctx context.Context, t Task) (headers map[string]string, done func(Result))
}

// Client enqueues tasks. It is safe for concurrent use, starts no goroutine and needs no closing.
type Client struct {
	rdb   redis.UniversalClient
	asynq *asynq.Client
	cfg   ClientConfig
	app   string // escaped
}

// NewClient returns a Client that enqueues into rdb. It does no I/O and does not take ownership of rdb: the caller closes it.
func NewClient(rdb redis.UniversalClient, cfg ClientConfig) *Client {
	cfg.AllowMethods = slices.Clone(cfg.AllowMethods)
	return &Client{
		rdb:   rdb,
		asynq: asynq.NewClientFromRedisClient(&recorder{UniversalClient: rdb}),
		cfg:   cfg,
		app:   EscapeApp(cfg.App),
	}
}

// Enqueue enqueues one task. Costs one round trip, and one more for the first task of a queue; see
// ClientConfig.Inspect for what that adds.
//
// An id that is taken yields a Duplicate Result and no error. A non-nil error is an *InvalidError,
// ctx's error, or wraps Redis's. After a connection error the task may have been enqueued; enqueuing
// it again under the same id is safe. If the connection breaks before the answer and go-redis repeats the
// command, the task may be reported as a Duplicate of itself, unless this package drew its id.
func (c *Client) Enqueue(ctx context.Context, t Task) (Result, error) {
	it := c.prepare(ctx, Entry{Task: t})
	c.send(ctx, []*item{it})
	if cause := ctx.Err(); cause != nil && it.result.State == Failed {
		it.result.Err = cause
	}
	if c.cfg.Inspect && it.result.Waits {
		c.inspect(ctx, &it.result, it.waiter)
	}
	it.report()
	return it.result, it.result.Err
}

// item is one entry of a batch in progress. Its result has no State until it is known.
type item struct {
	result Result
	from   Task            // with its defaults and its id
	waiter waitlist.Waiter // empty if the task is not planned
	task   *asynq.Task
	call   *call
	source bool         // the error is the source's
	done   func(Result) // of ClientConfig.OnEnqueue; nil: none, or called
}

// prepare does everything that needs no answer from Redis.
func (c *Client) prepare(ctx context.Context, e Entry) *item {
	it := &item{result: Result{Line: e.Line, ID: e.Task.ID, Queue: e.Task.Queue}}
	now := time.Now()
	if err := c.check(e, now); err != nil {
		it.source = isSource(err)
		return it.refuse(Invalid, err)
	}
	t := c.complete(e.Task)
	if t.ID == "" {
		t.ID, it.result.Random = uuid.NewString(), true
	}
	it.from = t
	c.describe(t, &it.result)
	if c.cfg.Limiter != nil && t.Delay == 0 {
		it.waiter = waitlist.Waiter{Scope: t.Scope, Queue: t.Queue, ID: t.ID, Cost: t.Cost, Costs: t.Costs, Priority: t.Priority}
	}
	var err error
	var more map[string]string
	if c.cfg.OnEnqueue != nil {
		more, it.done = c.cfg.OnEnqueue(ctx, t)
	}
	if it.task, err = t.asynqTask(now, c.app, more); err != nil {
		return it.refuse(Invalid, &InvalidError{Faults: []Fault{{Reason: err.Error(), Err: err}}})
	}
	if it.call, err = record(ctx, c.asynq, it.task); err != nil {
		return it.fail(err)
	}
	return it
}

// complete returns a task with its defaults and its id in asynq. A random id is drawn later.
func (c *Client) complete(t Task) Task {
	t = t.withDefaults()
	t.ID = c.cfg.Within.ownID(t.ID)
	return t
}

// inForce returns the Client's current policy, or nil for none.
func (c *Client) inForce() *policy.Policy {
	if c.cfg.Policy == nil && c.cfg.Limiter != nil {
		return c.cfg.Limiter.Policy()
	}
	return c.cfg.Policy
}

// describe fills in what a result says of a valid task.
func (c *Client) describe(t Task, r *Result) {
	r.ID, r.Queue, r.Timeout = t.ID, t.Queue, t.Timeout
	pol := c.inForce()
	scope, err := policy.ParseScope(t.Scope)
	if pol == nil || err != nil {
		return
	}
	_, level := pol.Apps(scope)
	r.AppScope = level.String()
	if len(t.Costs) > 0 {
		rules, _ := pol.Match(scope)
		r.Misspelt, r.Meant = t.Costs.Misspelt(rules)
	}
}

// isSource reports whether an error comes from the source rather than from an entry.
func isSource(err error) bool {
	_, bad := errors.AsType[*InvalidError](err)
	return !bad
}

// check returns the error of an entry or of its source, and refuses a task that could never run.
func (c *Client) check(e Entry, now time.Time) error {
	if e.Err != nil {
		return e.Err
	}
	t := e.Task
	found, pol := c.cfg.Within.check(t, t.checkMethod(c.cfg.AllowMethods, t.validate(now, nil))), c.inForce()
	if pol == nil || found.has("scope") || found.has("cost") {
		return found.err()
	}
	scope, err := policy.ParseScope(t.Scope)
	if err == nil {
		err = t.CheckCosts(pol, scope)
	}
	if ce, ok := errors.AsType[*policy.CostError](err); ok {
		found = append(found, costFault(ce))
	} else if err != nil {
		found = append(found, scopeFault(err))
	} else if apps, level := pol.Apps(scope); level.Len() > 0 && len(apps) == 0 {
		found = append(found, Fault{Field: "scope", Reason: "no application may spend from it: each of its levels allows others; change that with worker limits assign"})
	}
	return found.err()
}

// CheckCosts runs Policy.Check for the task's costs under the rules of scope.
func (t Task) CheckCosts(policy *policy.Policy, scope policy.Scope) error {
	if len(t.Costs) > 0 {
		return policy.CheckCosts(scope, t.Costs)
	}
	return policy.Check(scope, max(t.Cost, DefaultCost))
}

// send enqueues the items that have no result yet, in order and in one pipeline, and sets their results.
func (c *Client) send(ctx context.Context, items []*item) {
	c.plan(ctx, items)
	open := slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.result.State != "" })
	if len(open) == 0 {
		return
	}
	exec(ctx, c.rdb, open)
	for _, it := range open {
		c.conclude(ctx, it)
	}
	c.findArchived(ctx, open)
}

// findArchived marks the duplicates whose ids belong to archived tasks, in one pipeline. A state that
// cannot be read counts as another.
func (c *Client) findArchived(ctx context.Context, items []*item) {
	p := c.rdb.Pipeline()
	states := map[*item]*redis.StringCmd{}
	for _, it := range items {
		// asynq's key of the task
		i := slices.IndexFunc(it.call.keys, func(key string) bool { return strings.HasSuffix(key, ":t:"+it.result.ID) })
		if it.result.State == Duplicate && i >= 0 {
			states[it] = p.HGet(ctx, it.call.keys[i], "state")
		}
	}
	_, _ = p.Exec(ctx) // each has its own error
	for it, state := range states {
		it.result.Archived = state.Val() == asynq.TaskStateArchived.String()
	}
}

// conclude sets the result of an item from the answer to its call.
func (c *Client) conclude(ctx context.Context, it *item) {
	answer, err := it.call.answer.Result()
	if err == nil && answer != accepted {
		err = it.call.meaning(ctx, c.asynq, it.task)
	}
	switch taken := errors.Is(err, asynq.ErrTaskIDConflict); {
	case taken && !it.result.Random:
		it.refuse(Duplicate, nil)
	case err == nil || taken:
		// Another task cannot have an id that was drawn here: the first attempt enqueued the task, and its answer was lost.
		it.result.State = Enqueued
	default:
		it.fail(err)
	}
}

// refuse sets the result of a task that is not enqueued, and clears what is known of its wait.
func (it *item) refuse(state State, err error) *item {
	r := &it.result
	r.State, r.Err, r.Waits, r.Start, r.Ahead, r.WaitsFor = state, err, false, time.Time{}, 0, nil
	return it
}

func (it *item) fail(err error) *item {
	return it.refuse(Failed, fmt.Errorf("queue: enqueue %q in queue %q: %w", it.result.ID, it.result.Queue, err))
}

// report calls the function of ClientConfig.OnEnqueue with the item's result, once.
func (it *item) report() {
	if it.done != nil {
		it.done(it.result)
		it.done = nil
	}
}

// PublishedPolicy returns the policy that workers run under, as package policystore keeps it, or nil for
// none. The error is a *policystore.DamagedError if the policy cannot be decoded, ctx's, or one that wraps
// throttle.ErrUnavailable. Costs a few round trips.
func PublishedPolicy(ctx context.Context, rdb redis.UniversalClient) (*policy.Policy, error) {
	p, err := policystore.New(rdb, policystore.Config{}).Now(ctx)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, policystore.ErrNone):
		return nil, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("queue: read the limits in force: %w", err)
}
