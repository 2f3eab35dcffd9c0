package worker

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// A task is still active while asynq puts it back, and its turn may come meanwhile. A dispatcher waits
// for it, for two seconds at least. A put-back takes longer if Redis does not answer, or if its reply
// is lost: go-redis sends the call again after three seconds. The dispatcher then has to assume that
// the task runs, and the task has no place any more, though it is about to wait for minutes.

// slowPutBack is how long after its pick-up a task must be back, or it is checked whether it has its
// place. It is less than a dispatcher waits for it.
const slowPutBack = time.Second

// checkWhenBack has a task checked when asynq has put it back, if that took long.
func (t *Middleware) checkWhenBack(ctx context.Context, j *job) {
	g := asynqx.ClientOf(ctx)
	if g == nil || !j.queued {
		return
	}
	ctx = context.WithoutCancel(ctx)
	g.OnEnd(j.queue, j.id, func() {
		if time.Since(j.picked) >= slowPutBack {
			t.checkPlace(ctx, j)
		}
	})
}

// checkPlace puts a task that was put back, and has lost its place meanwhile, to the front of its
// queue: it had its turn. One that was granted a start is released.
func (t *Middleware) checkPlace(ctx context.Context, j *job) {
	queued, granted, err := t.cfg.Limiter.Waitlist().Standing(ctx, j.ref())
	if err != nil {
		t.observer.Failed("rejoin")
	}
	if queued {
		return
	}
	if !t.isBack(j) {
		return
	}
	if err == nil && !granted && t.back(ctx, j, throttle.Decision{}).After(time.Now()) {
		return
	}
	t.release(ctx, j.queue, j.id)
}

// isBack reports whether a task waits where asynq has put it back. It may have been taken again, or
// have failed since: asynq leaves to its recoverer what it could not put back within the lease.
func (t *Middleware) isBack(j *job) bool {
	info, err := t.inspector.GetTaskInfo(j.queue, j.id)
	return err == nil && info.Retried == j.retried && (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStatePending)
}

// release puts a task into pending that would wait for longer than it has to. One that does not
// wait any more stays as it is.
func (t *Middleware) release(ctx context.Context, name, id string) {
	_, _ = t.mover.Release(ctx, name, []string{id}) // else it comes by itself
	t.servers.Kick()
}
