package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// State is what became of a task that was to be enqueued.
type State string

// The states of a Result.
const (
	Enqueued  State = "enqueued"  // it waits in its queue
	Duplicate State = "duplicate" // its id is taken; nothing was changed
	Invalid   State = "invalid"   // refused, and would be refused again
	Failed    State = "failed"    // Redis refused, or gave no answer: then it may be enqueued
	Valid     State = "valid"     // of a Forecast: it would be enqueued
)

// Result is what became of one task.
type Result struct {
	Line  int    // the Entry's; 0 outside a batch
	ID    string // empty where a line could not be read
	Queue string
	State State
	// Waits says that the task has a place in line and Start when its start is
	// expected, as far as a clock can tell: the zero time where it can't, and for
	// tasks that were not Enqueued or that a Client without a Limiter enqueued.
	Waits bool
	Start time.Time
	// Random tells that the id was drawn here. Enqueuing the same task once more
	// makes a second one.
	Random bool
	// AppScope is the lowest level of its scope that only some applications may spend from,
	// by the policy at hand, empty where all may: the task waits for a worker of one of them.
	// Policy.Apps names them.
	AppScope string
	// Timeout is how long a run of the task may take by its own Timeout, 0 for any time: workers may
	// let it take less.
	Timeout time.Duration
	// Err is nil when Enqueued or Duplicate, an *InvalidError when Invalid, and
	// otherwise wraps what Redis said.
	Err error
}

// ClientConfig is how a Client checks what it enqueues. Its zero value works.
type ClientConfig struct {
	// Policy refuses a task whose scope it does not know, or whose cost it can
	// never admit, before it is enqueued.
	// Defaults to nil: scopes and costs are checked by the worker alone.
	Policy *policy.Policy
	// Limiter gives tasks their turns before they are enqueued: while a limit is
	// used up, a task goes to its place in line at once, and to nobody's way in its
	// queue. It must have the policy and the state that the workers' has. Policy may
	// then be left out: the Limiter's is used, as it is by then.
	// Defaults to nil: a task gets its turn when a worker has picked it up.
	Limiter *throttle.Limiter
	// Queues and StrictPriority are those of the workers' asynq.Config: with a Limiter, tasks
	// of heavier queues get their turns sooner. Default to what workers make known in
	// Redis, which is read every ten seconds while tasks are planned.
	Queues         map[string]int
	StrictPriority bool
	// AllowMethods names methods that tasks of type "http" may have besides those of RFC 9110
	// and PATCH, such as "PROPFIND". A client cannot know what workers allow: it must be what
	// their outbound.Config.AllowMethods, or -allow-method, names. What it does not name is
	// refused before it is enqueued. CONNECT and TRACE are, whatever it names.
	// Defaults to none.
	AllowMethods []string
	// Within keeps tasks to a scope and what lies below it, for tasks that somebody else has written.
	// Defaults to nil: any scope, ids that all share, any priority.
	Within *Within
	// App names the application that enqueues. Tasks carry it in HeaderApp, and worker inspect usage says of what tasks spent
	// who enqueued them. Of a name that is longer than 128 bytes the beginning counts. Defaults to none.
	App string
}

// Client enqueues tasks. It is safe for concurrent use, starts no goroutine and
// needs no closing.
type Client struct {
	rdb    redis.UniversalClient
	asynq  *asynq.Client
	policy *policy.Policy
	turns  planner

	allowMethods []string
	within       *Within
	app          string // escaped
}

// NewClient returns a Client that enqueues into rdb. It does no I/O and takes no
// ownership: closing rdb stays with the caller.
func NewClient(rdb redis.UniversalClient, cfg ClientConfig) *Client {
	return &Client{
		rdb:    rdb,
		turns:  planner{limiter: cfg.Limiter, weights: weightsOf(rdb, cfg)},
		asynq:  asynq.NewClientFromRedisClient(&recorder{UniversalClient: rdb}),
		policy: cfg.Policy,

		allowMethods: slices.Clone(cfg.AllowMethods),
		within:       cfg.Within,
		app:          EscapeApp(cfg.App),
	}
}

// Enqueue enqueues one task, in one round trip (and one more for the first task
// of a queue).
//
// An id that is taken is a Result, Duplicate, and no error. A non-nil error is
// an *InvalidError, ctx's error, or wraps what Redis said; after an error of the
// connection the task may be enqueued nevertheless, and enqueuing it again under
// the same id is safe.
//
// go-redis sends a command again when the connection breaks before the answer.
// A task that the first sending had enqueued is then reported as a Duplicate,
// unless its id was drawn here.
func (c *Client) Enqueue(ctx context.Context, t Task) (Result, error) {
	it := c.prepare(ctx, Entry{Task: t})
	c.send(ctx, []*item{it})
	if it.result.Err != nil && it.result.State == Failed {
		if cause := ctx.Err(); cause != nil {
			it.result.Err = cause
		}
	}
	return it.result, it.result.Err
}

// item is one entry of a batch on its way. Its call is nil once its result is
// known.
type item struct {
	result  Result
	task    *asynq.Task
	ask     throttle.Waiter // empty for a task that is not planned
	call    *call
	delay   time.Duration
	maxWait time.Duration
	source  bool // the error is the source's

	deadline time.Time // zero: none
}

// prepare does all that needs no answer from Redis.
func (c *Client) prepare(ctx context.Context, e Entry) *item {
	it := &item{result: Result{Line: e.Line, ID: e.Task.ID, Queue: e.Task.Queue}}
	now := time.Now()
	if err := c.examine(e, now); err != nil {
		it.source = isSource(err)
		return it.refuse(Invalid, err)
	}
	t := c.with(e.Task)
	it.delay, it.maxWait, it.deadline = t.Delay, t.MaxWait, t.Deadline
	if t.ID == "" {
		t.ID, it.result.Random = randomID(), true
	}
	it.result.ID, it.result.Queue, it.result.AppScope, it.result.Timeout = t.ID, t.Queue, c.appScope(t), t.Timeout
	if c.turns.limiter != nil && t.Delay == 0 {
		it.ask = throttle.Waiter{Scope: t.Scope, ID: Ticket(t.Queue, t.ID), Cost: t.Cost, Costs: t.Costs, Priority: t.Priority}
	}
	var err error
	if it.task, err = t.asynqTask(now, c.app); err != nil {
		return it.refuse(Invalid, &InvalidError{Faults: []Fault{{Reason: err.Error(), Err: err}}})
	}
	if it.call, err = record(ctx, c.asynq, t.Queue, it.task); err != nil {
		return it.fail(err)
	}
	return it
}

// inForce is the policy at hand, nil for none.
func (c *Client) inForce() *policy.Policy {
	if c.policy == nil && c.turns.limiter != nil {
		return c.turns.limiter.Policy()
	}
	return c.policy
}

// appScope is the lowest level of a task's scope that names applications.
func (c *Client) appScope(t Task) string {
	pol := c.inForce()
	if pol == nil {
		return ""
	}
	scope, err := policy.ParseScope(t.Scope)
	if err != nil {
		return ""
	}
	_, level := pol.AppsAt(scope)
	return level.String()
}

// examine returns what is wrong with an entry, or with its source.
func (c *Client) examine(e Entry, now time.Time) error {
	if e.Err != nil {
		return e.Err
	}
	return c.check(e.Task, now)
}

// isSource tells the errors of a source from those of an entry.
func isSource(err error) bool {
	_, bad := errors.AsType[*InvalidError](err)
	return !bad
}

// check refuses what could never run.
func (c *Client) check(t Task, now time.Time) error {
	found, pol := c.within.check(t, t.checkMethod(c.allowMethods, t.validate(now, nil))), c.inForce()
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
	} else if apps, all := pol.Apps(scope); !all && len(apps) == 0 {
		found = append(found, Fault{Field: "scope", Reason: "no application may spend from it: its levels name others each; worker limits assign changes who may"})
	}
	return found.err()
}

// CheckCosts is Policy.Check for what the task costs under a scope's rules.
func (t Task) CheckCosts(policy *policy.Policy, scope policy.Scope) error {
	if len(t.Costs) > 0 {
		return policy.CheckCosts(scope, t.Costs)
	}
	return policy.Check(scope, max(t.Cost, DefaultCost))
}

// send enqueues the items that are still open, in order and in one pipeline, and
// sets their results.
func (c *Client) send(ctx context.Context, items []*item) {
	c.plan(ctx, items)
	calls := make([]*call, 0, len(items))
	for _, it := range items {
		if it.call != nil {
			calls = append(calls, it.call)
		}
	}
	if len(calls) == 0 {
		return
	}
	exec(ctx, c.rdb, calls)
	for _, it := range items {
		if it.call != nil {
			c.conclude(ctx, it)
		}
	}
}

// conclude turns the answer to an item's call into its result.
func (c *Client) conclude(ctx context.Context, it *item) {
	answer, err := it.call.answer.Result()
	if err != nil {
		it.fail(err)
		return
	}
	if answer != accepted {
		err = it.call.meaning(ctx, c.asynq, it.task)
	}
	switch {
	case err == nil, errors.Is(err, asynq.ErrTaskIDConflict) && it.result.Random:
		// Nobody else drew the id: the task is there from a first sending whose
		// answer was lost.
		it.result.State = Enqueued
	case errors.Is(err, asynq.ErrTaskIDConflict):
		it.result.State, it.result.Waits, it.result.Start = Duplicate, false, time.Time{}
	default:
		it.fail(err)
		return
	}
	it.call = nil
}

func (it *item) refuse(state State, err error) *item {
	it.result.State, it.result.Err, it.call = state, err, nil
	it.result.Waits, it.result.Start = false, time.Time{}
	return it
}

func (it *item) fail(err error) *item {
	return it.refuse(Failed, fmt.Errorf("queue: enqueue %q in queue %q: %w", it.result.ID, it.result.Queue, err))
}
