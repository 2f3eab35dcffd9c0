package worker

import (
	"context"
	"crypto/md5" //nolint:gosec // asynq names its locks by it
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// asynq's Unique option keeps a lock for a time fixed when the task is enqueued.
// A task that is limited for longer would lose it, and a duplicate get in. So
// waiting stops the lock's clock: it is put off by as long as the task waits.
//
// The lock's key is asynq's own (v0.25, v0.26); where it is another, locks only
// run out as they do in asynq.
func lockKey(j *job) string {
	key := "asynq:{" + j.queue + "}:unique:" + j.task.Type() + ":"
	if payload := j.task.Payload(); payload != nil {
		sum := md5.Sum(payload) //nolint:gosec // as above
		key += hex.EncodeToString(sum[:])
	}
	return key
}

// keepLock puts the task's lock off until at, if it holds one.
func (t *Middleware) keepLock(ctx context.Context, j *job, at time.Time) {
	left := t.lockLeft(ctx, j)
	if left <= 0 {
		return
	}
	if err := t.cfg.Redis.PExpire(ctx, lockKey(j), left+max(time.Until(at), 0)).Err(); err != nil {
		t.observer.Failed("lock")
	}
}

// lockLeft returns how long the task's lock still has, 0 when it holds none.
func (t *Middleware) lockLeft(ctx context.Context, j *job) time.Duration {
	var holder *redis.StringCmd
	var left *redis.DurationCmd
	err := redisread.FromMaster(ctx, t.cfg.Redis, func(pipe redis.Pipeliner) error {
		holder, left = pipe.Get(ctx, lockKey(j)), pipe.PTTL(ctx, lockKey(j))
		return nil
	})
	if err != nil || holder.Val() != j.id {
		return 0
	}
	return max(left.Val(), 0)
}

// keepLocks is keepLock for many tasks, most of which hold none: one round trip, and
// another where some do.
func (t *Middleware) keepLocks(ctx context.Context, jobs []*job, until []time.Time) {
	if len(jobs) == 0 {
		return
	}
	holders, left := make([]*redis.StringCmd, len(jobs)), make([]*redis.DurationCmd, len(jobs))
	_ = redisread.FromMaster(ctx, t.cfg.Redis, func(pipe redis.Pipeliner) error {
		for i, j := range jobs {
			holders[i], left[i] = pipe.Get(ctx, lockKey(j)), pipe.PTTL(ctx, lockKey(j)) // one that fails is nobody's
		}
		return nil
	})
	_, err := t.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, j := range jobs {
			if holders[i].Val() == j.id && left[i].Val() > 0 {
				pipe.PExpire(ctx, lockKey(j), left[i].Val()+max(time.Until(until[i]), 0))
			}
		}
		return nil
	})
	if err != nil {
		t.observer.Failed("lock")
	}
}
