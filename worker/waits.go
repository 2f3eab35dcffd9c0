package worker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// What a waiting task does not carry itself is kept beside it, and not in the text of its last error: that may
// be what an API has answered. It is one small hash for each of its attempts, so a real failure begins it
// anew, and goes by itself.
const (
	sinceField    = "since"     // µs since 1970: when the wait began
	deferralField = "deferrals" // how often the API has put the task off

	// waitStays is how much longer it is kept than the task is known to be away, and deferralStays how long a
	// task may stand in line between two deferrals that are counted together.
	waitStays     = time.Hour
	deferralStays = 24 * time.Hour
)

// waitKey names the attempt by the retries that are left after it, which a task keeps when it is carried over.
func waitKey(j *job) string {
	return "hw:wait:{" + j.queue + "}:" + strconv.Itoa(j.retriesLeft()) + ":" + j.id
}

// keepSince keeps when the task's wait began until it comes again.
func (t *Throttle) keepSince(ctx context.Context, j *job, at time.Time) {
	if j.since.IsZero() || j.carriesDue() {
		return
	}
	_, err := t.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, waitKey(j), sinceField, j.since.UnixMicro())
		pipe.PExpire(ctx, waitKey(j), max(0, time.Until(at))+waitStays)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		t.observer.Failed("patience")
	}
}

// sinceKept is when the task's wait began, the zero time where nothing is known of it.
func (t *Throttle) sinceKept(ctx context.Context, j *job) time.Time {
	var kept *redis.StringCmd
	err := throttle.ReadFromMaster(ctx, t.cfg.Redis, func(pipe redis.Pipeliner) error {
		kept = pipe.HGet(ctx, waitKey(j), sinceField)
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return time.Time{}
	}
	us, err := kept.Int64()
	if err != nil {
		if ctx.Err() == nil {
			t.observer.Failed("patience")
		}
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// mayDefer counts a deferral, and says whether the task may be put off once more. Where Redis does not
// answer it may.
func (t *Throttle) mayDefer(ctx context.Context, j *job, wait time.Duration) bool {
	if t.cfg.MaxDeferrals < 0 {
		return true
	}
	var n *redis.IntCmd
	_, err := t.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		n = pipe.HIncrBy(ctx, waitKey(j), deferralField, 1)
		pipe.PExpire(ctx, waitKey(j), wait+deferralStays)
		return nil
	})
	if err != nil {
		t.observer.Failed("defer")
		return true
	}
	return n.Val() <= int64(t.cfg.MaxDeferrals)
}
