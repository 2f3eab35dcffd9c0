package worker

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// running is the run that a context is of.
type running struct {
	throttle *Middleware
	job      *job
	grant    throttle.Grant

	mu   sync.Mutex
	told policy.Costs // what it has spent, as Config.Usage was told; nil: as at its start
}

type runningKey struct{}

// withRun lets a handler settle what its run spends. A run that spends nothing has no part
// in it.
func (t *Middleware) withRun(ctx context.Context, j *job, g throttle.Grant) context.Context {
	if g.Zero() {
		return ctx
	}
	return context.WithValue(ctx, runningKey{}, &running{throttle: t, job: j, grant: g})
}

// settled tells what a run has spent more than was told before.
func (r *running) settled(costs policy.Costs) {
	u, asks := r.throttle.cfg.Usage.(SettledUsage)
	if !asks {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = r.job.estimated()
	}
	more := policy.Costs{}
	for unit, n := range costs {
		if d := n - r.told.Of(unit); d != 0 {
			more[unit], r.told[unit] = d, n
		}
	}
	if len(more) > 0 {
		u.Settled(r.job.scope, r.job.by(), more)
	}
}

// estimated is what a task was told to spend when it started, by unit.
func (j *job) estimated() policy.Costs {
	if len(j.costs) > 0 {
		return maps.Clone(j.costs)
	}
	return policy.Costs{policy.Requests: max(j.cost, 1)}
}

// Settle makes what the task of a handler's ctx was charged at its start what it has spent:
//
//	worker.Settle(ctx, policy.Costs{"tokens": 1830})
//
// Less comes back, more is charged as a debt; see throttle.Limiter.Settle, whose errors and
// cost it has. It can be called as often as more is known, while an answer streams say, and
// whether the handler then fails or not: each attempt of a task is charged anew, and settled
// by itself. What a handler never settles stays charged as it was estimated. Outside of a
// limited task's run it does nothing.
func Settle(ctx context.Context, costs policy.Costs) (throttle.Settlement, error) {
	r, ok := ctx.Value(runningKey{}).(*running)
	if !ok {
		return throttle.Settlement{}, nil
	}
	got, err := r.throttle.cfg.Limiter.Settle(ctx, r.grant, costs)
	if err == nil {
		r.settled(costs)
	}
	return got, err
}

// SaveGrant lets what the task of a handler's ctx was charged be settled from elsewhere when its
// handler has ended, for so long: throttle.Limiter.LoadGrant finds it by the task's scope and id.
// A later attempt that is kept takes its place. Its errors and cost are those of
// throttle.Limiter.SaveGrant; outside of a limited task's run it does nothing.
func SaveGrant(ctx context.Context, stay time.Duration) error {
	r, ok := ctx.Value(runningKey{}).(*running)
	if !ok {
		return nil
	}
	return r.throttle.cfg.Limiter.SaveGrant(ctx, r.grant, r.job.id, stay)
}
