package asynqx

import (
	"context"
	"crypto/md5" //nolint:gosec // asynq names its locks by it
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// Lock is the lock of asynq's Unique option, as a task may hold it, under asynq's own key. asynq keeps it for a time fixed when the task
// is enqueued. A task that is limited for longer would lose it, and a duplicate would be accepted. So waiting extends the lock by as
// long as the task waits.
type Lock struct {
	// Key is where asynq keeps the lock, and ID the task that may hold it.
	Key, ID string
}

// NewLock returns the lock that a task of a queue may hold. It does no I/O.
func NewLock(queue, id, kind string, payload []byte) Lock {
	key := QueuePrefix(queue) + "unique:" + kind + ":"
	if payload != nil {
		sum := md5.Sum(payload) //nolint:gosec // as above
		key += hex.EncodeToString(sum[:])
	}
	return Lock{Key: key, ID: id}
}

// Left returns how long the task still holds its lock, 0 if it holds none. It costs one round trip to the master.
func (l Lock) Left(ctx context.Context, rdb redis.UniversalClient) time.Duration {
	var holder *redis.StringCmd
	var left *redis.DurationCmd
	err := redisread.FromMaster(ctx, rdb, func(pipe redis.Pipeliner) error {
		holder, left = pipe.Get(ctx, l.Key), pipe.PTTL(ctx, l.Key)
		return nil
	})
	if err != nil || holder.Val() != l.ID {
		return 0
	}
	return max(left.Val(), 0)
}

// ExtendLocks extends the locks that are held by as long as their tasks wait. It costs one round trip, and
// another one if some are held.
func ExtendLocks(ctx context.Context, rdb redis.UniversalClient, locks []Lock, until []time.Time) error {
	if len(locks) == 0 {
		return nil
	}
	holders, left := make([]*redis.StringCmd, len(locks)), make([]*redis.DurationCmd, len(locks))
	_ = redisread.FromMaster(ctx, rdb, func(pipe redis.Pipeliner) error {
		for i, l := range locks {
			holders[i], left[i] = pipe.Get(ctx, l.Key), pipe.PTTL(ctx, l.Key) // a lock whose call fails counts as not held
		}
		return nil
	})
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, l := range locks {
			if holders[i].Val() == l.ID && left[i].Val() > 0 {
				pipe.PExpire(ctx, l.Key, left[i].Val()+max(time.Until(until[i]), 0))
			}
		}
		return nil
	})
	return err
}
