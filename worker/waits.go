package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// State of a wait that the task does not carry itself is kept in a key beside it. The text of its last error is not used: an API's
// answer may have written it. Each attempt has its own key, so a real failure starts anew. The key has a TTL.
const (
	// waitStays is how much longer the state is kept than the task is known to be away. deferralStays
	// is how long a task may wait in its queue between two deferrals that are counted together.
	waitStays     = time.Hour
	deferralStays = 24 * time.Hour
)

// waitKey names the attempt by the number of retries left after it, which does not change when the task is re-enqueued.
func waitKey(j *job) string {
	return "hw:wait:{" + j.queue + "}:" + strconv.Itoa(j.retriesLeft()) + ":" + j.id
}

// saveWait stores, until the task comes again, when its wait began, in µs since 1970 (0 if the task
// carries that itself), and how often its API has deferred it.
func (m *Middleware) saveWait(ctx context.Context, j *job, at time.Time) {
	since, stays := int64(0), waitStays
	if !j.since.IsZero() && !j.headerHasDue() {
		since = j.since.UnixMicro()
	}
	if j.deferrals > 0 {
		stays = deferralStays
	} else if since == 0 {
		return
	}
	stays += max(0, time.Until(at))
	if err := m.cfg.Redis.Set(ctx, waitKey(j), fmt.Sprint(since, " ", j.deferrals), stays).Err(); err != nil && ctx.Err() == nil {
		m.observer.Failed("patience")
	}
}

// loadWait reads the stored state of the wait. It returns when the wait began, the zero time if that
// is unknown, and records the deferrals in the job.
func (m *Middleware) loadWait(ctx context.Context, j *job) time.Time {
	kept, err := redisread.One(ctx, m.cfg.Redis, func(p redis.Pipeliner) *redis.StringCmd { return p.Get(ctx, waitKey(j)) })
	if errors.Is(err, redis.Nil) {
		return time.Time{}
	}
	since := int64(0)
	if err == nil {
		_, err = fmt.Sscan(kept.Val(), &since, &j.deferrals)
	}
	if err != nil && ctx.Err() == nil {
		m.observer.Failed("patience")
	}
	if err != nil || since == 0 {
		return time.Time{}
	}
	return time.UnixMicro(since)
}

// mayDefer counts a deferral, which is stored when the task is put back, and reports whether the task
// may be deferred once more. It may if Redis does not answer.
func (m *Middleware) mayDefer(ctx context.Context, j *job) bool {
	if m.cfg.MaxDeferrals < 0 {
		return true
	}
	if j.deferrals == 0 {
		_ = m.loadWait(ctx, j)
	}
	j.deferrals++
	return j.deferrals <= m.cfg.MaxDeferrals
}

// A task is still active while asynq puts it back, and its turn may come meanwhile. A dispatcher waits for it, for two seconds at
// least. A put-back takes longer if Redis does not answer or a reply is lost. The dispatcher then has to assume that the task runs, and
// the task has no place any more, though it is about to wait for minutes.

// slowPutBack is how long after its pick-up a task must be back, else it is checked whether it has its place. A dispatcher waits longer.
const slowPutBack = time.Second

// checkWhenBack has a task checked when asynq has put it back, if that took long.
func (m *Middleware) checkWhenBack(ctx context.Context, j *job) {
	if !j.queued {
		return
	}
	c := asynqx.ClientOf(ctx)
	ctx = context.WithoutCancel(ctx)
	c.OnEnd(j.queue, j.id, func() {
		if time.Since(j.picked) >= slowPutBack {
			m.checkPlace(ctx, j)
		}
	})
}

// checkPlace puts a task that was put back, and has lost its place meanwhile, to the front of its
// queue: it had its turn. One that was granted a start is released.
func (m *Middleware) checkPlace(ctx context.Context, j *job) {
	queued, granted, err := m.cfg.Limiter.Waitlist().Standing(ctx, j.ref())
	if err != nil {
		m.observer.Failed("rejoin")
	}
	if queued || !m.isBack(j) {
		return
	}
	if err == nil && !granted && m.back(ctx, j, throttle.Decision{}).After(time.Now()) {
		return
	}
	m.release(ctx, j.queue, j.id)
}

// isBack reports whether a task waits where asynq has put it back. It may have been taken again, or
// have failed since: asynq leaves to its recoverer what it could not put back within the lease.
func (m *Middleware) isBack(j *job) bool {
	info, err := m.inspector.GetTaskInfo(j.queue, j.id)
	return err == nil && info.Retried == j.retried && (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStatePending)
}

// release puts a task into pending that would wait for longer than it has to. One that does not wait any more stays as it is.
func (m *Middleware) release(ctx context.Context, name, id string) {
	_, _ = m.mover.Release(ctx, name, []string{id}) // else it comes by itself
	m.servers.Kick()
}
