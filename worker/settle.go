package worker

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle"
)

// running is the run that a context is of.
type running struct {
	limiter *throttle.Limiter
	grant   throttle.Grant
	id      string
}

type runningKey struct{}

// withRun lets a handler settle what its run spends. A run that spends nothing has no part
// in it.
func (t *Throttle) withRun(ctx context.Context, j *job, g throttle.Grant) context.Context {
	if g.Zero() {
		return ctx
	}
	return context.WithValue(ctx, runningKey{}, &running{t.cfg.Limiter, g, j.id})
}

// Settle makes what the task of a handler's ctx was charged at its start what it has spent:
//
//	worker.Settle(ctx, throttle.Costs{"tokens": 1830})
//
// Less comes back, more is charged as a debt; see throttle.Limiter.Settle, whose errors and
// cost it has. It can be called as often as more is known, while an answer streams say, and
// whether the handler then fails or not: each attempt of a task is charged anew, and settled
// by itself. What a handler never settles stays charged as it was estimated. Outside of a
// limited task's run it does nothing.
func Settle(ctx context.Context, costs throttle.Costs) (throttle.Settlement, error) {
	r, ok := ctx.Value(runningKey{}).(*running)
	if !ok {
		return throttle.Settlement{}, nil
	}
	return r.limiter.Settle(ctx, r.grant, costs)
}

// Keep lets what the task of a handler's ctx was charged be settled from elsewhere when its
// handler has ended, for so long: throttle.Limiter.Kept finds it by the task's scope and id.
// A later attempt that is kept takes its place. Its errors and cost are those of
// throttle.Limiter.Keep; outside of a limited task's run it does nothing.
func Keep(ctx context.Context, stay time.Duration) error {
	r, ok := ctx.Value(runningKey{}).(*running)
	if !ok {
		return nil
	}
	return r.limiter.Keep(ctx, r.grant, r.id, stay)
}
