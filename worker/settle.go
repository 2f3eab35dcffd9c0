package worker

import (
	"context"
	"maps"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// settled reports the difference between costs and what was reported before.
func (r *taskRun) settled(costs policy.Costs) {
	u := r.throttle.cfg.Usage
	if u == nil {
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
	if len(more) > 0 {
		u.Settled(r.job.scope, r.job.by(), more)
	}
}

// estimated returns what a task was charged when it started, by unit.
func (j *job) estimated() policy.Costs {
	if len(j.costs) > 0 {
		return maps.Clone(j.costs)
	}
	return policy.Costs{policy.Requests: max(j.cost, 1)}
}

// Settle corrects the charge of the running task to what it has spent. ctx is the context of its
// handler:
//
//	worker.Settle(ctx, policy.Costs{"tokens": 1830})
//
// A smaller cost is refunded, a larger one charged as a debt. See throttle.Limiter.Settle, whose
// errors and cost it has. A handler may call it as often as it learns more, for example while an
// answer streams, and whether it then fails or not: each attempt of a task is charged anew and settled
// by itself. A run that is never settled stays charged as estimated. Outside of a limited task's run
// it does nothing.
func Settle(ctx context.Context, costs policy.Costs) (throttle.Settlement, error) {
	r, ok := ctx.Value(runKey{}).(*taskRun)
	if !ok || r.grant.Zero() {
		return throttle.Settlement{}, nil
	}
	got, err := r.throttle.cfg.Limiter.Settle(ctx, r.grant, costs)
	if err == nil {
		r.settled(costs)
	}
	return got, err
}

// settleRefused takes an http task that its API refused out of the quotas of its scope. It is one call; how many calls another
// task has made is for its handler to say.
func (t *Middleware) settleRefused(ctx context.Context, j *job, g throttle.Grant) {
	if j.task.Type() != queue.TypeHTTP || g.Zero() {
		return
	}
	if _, err := t.cfg.Limiter.SettleRefused(ctx, g); err != nil {
		t.observer.Failed("settle")
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
	return r.throttle.cfg.Limiter.SaveGrant(ctx, r.grant, r.job.id, stay)
}
