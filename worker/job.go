package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/backlog"
)

// job is one pick-up of a task: what it spends, and its state in asynq.
type job struct {
	task    *asynq.Task
	id      string
	queue   string
	retried int // real failures so far
	allowed int // retries that asynq allows

	scope     string // empty: it names none
	unlimited bool   // Spends says that no limit is for it
	cost      int64
	costs     policy.Costs // by unit, instead of cost

	priority int

	own      bool // written by package queue: its budget is in a header
	budget   int
	deadline time.Time
	timeout  time.Duration

	maxWait   time.Duration   // the task's own; 0: none
	due       time.Time       // earliest start; zero: unknown
	since     time.Time       // when its wait began; zero: not read
	deferrals int             // of this attempt, by its API, as far as they were read
	bounds    []time.Duration // max waits, its own and its rules'
	why       string          // why it waits for other limits or workers; else empty
	slot      *asynqx.Slot    // the slot that it occupies
	crowded   bool            // its tenant has its share of the slots
	queued    bool            // it is put back to wait for its turn
	ahead     int64           // how many tasks of its line are before it, -1 if that is not known
	expected  time.Duration   // until its start

	picked   time.Time // when it was taken from asynq
	decision throttle.Decision
	marked   bool // Redis has the mark of its last attempt
	ran      bool // a run has begun
}

// read parses what a task spends and how it may fail. A retry never cures the error.
func (m *Middleware) read(ctx context.Context, task *asynq.Task) (*job, error) {
	j := &job{task: task, picked: time.Now(), ahead: -1, expected: throttle.Never}
	j.id, _ = asynq.GetTaskID(ctx)
	j.queue, _ = asynq.GetQueueName(ctx)
	j.retried, _ = asynq.GetRetryCount(ctx)
	j.allowed, _ = asynq.GetMaxRetry(ctx)
	return j, m.spends(j)
}

// spends reads from the task itself what it spends and how it may fail.
func (m *Middleware) spends(j *job) error {
	spec, found, err := queue.ReadSpec(j.task)
	if err != nil {
		return err
	}
	if found {
		j.scope, j.cost, j.costs = spec.Scope, spec.Cost, spec.Costs
		j.deadline, j.timeout = spec.Deadline, spec.Timeout
		j.priority, j.maxWait, j.due = spec.Priority, spec.MaxWait, spec.Due
		if spec.Budget != queue.NoBudget {
			j.own, j.budget = true, spec.Budget
		}
	}
	if j.scope == "" && m.cfg.Spends != nil {
		return m.askSpends(j)
	}
	return nil
}

// askSpends has the user's functions say what a task spends that names no scope itself.
func (m *Middleware) askSpends(j *job) error {
	j.scope, j.cost = m.cfg.Spends(j.task)
	j.costs = nil
	switch {
	case j.scope == Unlimited:
		j.scope, j.unlimited = "", true
		return nil
	case j.cost < 0:
		return fmt.Errorf("headway: Config.Spends returns a cost of %d for a task of type %q; try: a whole number from 1", j.cost, j.task.Type())
	case m.cfg.Costs == nil || j.scope == "":
		return nil
	}
	if j.costs = m.cfg.Costs(j.task); len(j.costs) == 0 {
		return nil
	}
	return j.costs.CheckUnits()
}

// readPending reads a pending task for the planner, which lets it wait where it stands. waits is false
// for a task that must be picked up for a decision.
func (m *Middleware) readPending(name string, info *asynq.TaskInfo) (task backlog.Task, waits bool) {
	defer func() {
		if recover() != nil { // Spends is the user's function, and may need what only a handler has
			waits = false
		}
	}()
	j := &job{
		task: asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers),
		id:   info.ID, queue: name, retried: info.Retried, allowed: info.MaxRetry,
	}
	err := m.spends(j)
	if err != nil || j.scope == "" || !j.deadline.IsZero() || j.own && j.retried > j.budget {
		return backlog.Task{}, false
	}
	task = backlog.Task{Waiter: j.waiter(), Own: j.own, Lock: j.lock(), MaxWait: j.maxWait}
	if j.headerHasDue() {
		task.Due = j.due
	}
	return task, true
}

// lock returns the lock of a task that was enqueued with asynq's Unique option.
func (j *job) lock() asynqx.Lock {
	return asynqx.NewLock(j.queue, j.id, j.task.Type(), j.task.Payload())
}

// ref names the task among those that wait.
func (j *job) ref() waitlist.Ref { return waitlist.Ref{Scope: j.scope, Queue: j.queue, ID: j.id} }

// waiter returns the waiter with which the task joins its line.
func (j *job) waiter() waitlist.Waiter {
	return waitlist.Waiter{Scope: j.scope, Queue: j.queue, ID: j.id, Cost: j.cost, Costs: j.costs, Priority: j.priority}
}

// request returns the throttle request of the task, which can wait for its turn.
func (j *job) request() throttle.Request {
	return throttle.Request{Scope: j.scope, Cost: j.cost, Costs: j.costs, Waiter: throttle.Waiter{Queue: j.queue, ID: j.id}}
}

// last reports whether a failure of this run would be final.
func (j *job) last() bool { return j.retriesLeft() <= 0 }

// marks reports whether a run has a mark in Redis: asynq would bring it back after a crash, and it may not run again.
func (j *job) marks() bool { return j.own && j.last() }

// retriesLeft returns how often the task is retried if this run and all later ones fail.
func (j *job) retriesLeft() int {
	if j.own {
		return j.budget - j.retried
	}
	return j.allowed - j.retried
}

// startsWithin returns how long the task may still wait for its start: until its own deadline, or the one that asynq keeps.
func (j *job) startsWithin(ctx context.Context) time.Duration {
	if !j.deadline.IsZero() {
		return time.Until(j.deadline)
	}
	if ends, bounded := ctx.Deadline(); bounded && !j.own {
		return time.Until(ends)
	}
	return throttle.Never
}
