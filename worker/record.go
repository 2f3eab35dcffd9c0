package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/backlog"
)

// demand returns what a record has of a task, without its times and its end.
func (j *job) demand() demand.Task {
	return demand.Task{ID: demand.ID(j.queue, j.id), Scope: j.scope, Queue: j.queue, Cost: j.cost, Costs: j.costs, Priority: j.priority, Retried: j.retried}
}

// wanted returns when the task could have started but for limits and slots, in µs by Redis's clock: when it was due, or else when it was
// picked up. 0 if a dispatcher brought it, since it was met before.
func (m *Middleware) wanted(j *job) int64 {
	switch {
	case j.headerHasDue():
		return j.due.UnixMicro()
	case j.decision.Handed:
		return 0
	}
	return m.onServer(j.scope, j.picked)
}

// onServer returns a moment of this process's clock in µs by Redis's.
func (m *Middleware) onServer(scope string, at time.Time) int64 {
	return m.now(scope).Add(-time.Since(at)).UnixMicro()
}

// recordEnd records a pick-up without a run: a task that begins to wait, where its headers do not say when, or the end of one.
func (m *Middleware) recordEnd(j *job, err error) {
	stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) // asynq has ended it, and brings it back
	if j.ran || stopped || j.scope == "" || !m.cfg.Record.Wants(j.scope) {
		return
	}
	t := j.demand()
	t.Wanted = m.wanted(j)
	if _, waits := AsLimited(err); !waits {
		t.Outcome, t.Ended = demand.Refused, m.onServer(j.scope, time.Now())
	} else if j.headerHasDue() || t.Wanted == 0 {
		return
	}
	m.cfg.Record.Record(t)
}

// recordPlanned records a task that begins to wait where it stands.
func (m *Middleware) recordPlanned(task backlog.Task) {
	w := task.Waiter
	if !task.Due.IsZero() || !m.cfg.Record.Wants(w.Scope) {
		return
	}
	m.cfg.Record.Record(demand.Task{
		ID: demand.ID(w.Queue, w.ID), Scope: w.Scope, Queue: w.Queue, Cost: w.Cost, Costs: w.Costs, Priority: w.Priority, Wanted: m.now(w.Scope).UnixMicro(),
	})
}

// record records a run that has ended.
func (r *taskRun) record(outcome string) {
	m, j := r.m, r.job
	if j.scope == "" || !m.cfg.Record.Wants(j.scope) {
		return
	}
	t := j.demand()
	t.Member, t.Outcome = r.grant.Member(), outcome
	t.Wanted, t.Started, t.Ended = m.wanted(j), m.onServer(j.scope, r.began), m.onServer(j.scope, time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Status, t.Used = r.status, maps.Clone(r.spent)
	if outcome == "deferred" && j.task.Type() == queue.TypeHTTP && !r.counts { // see settleRefused
		t.Used = policy.Costs{policy.Requests: 0}
		for unit := range j.estimated() {
			t.Used[unit] = 0
		}
	}
	m.cfg.Record.Record(t)
}

// recording says of this process what a record has of it.
func (l *Limits) recording() demand.Process {
	return demand.Process{Slots: int(l.concurrency.Load()), Limits: fmt.Sprintf("%016x", l.Limiter().Policy().Digest())}
}
