package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// What a waiting task does not carry itself is kept beside it, and not in the text of its last error: that may
// be what an API has answered. Each of its attempts has a key, so a real failure begins anew. It is
// written whole, with its TTL, by the one run of the task that there is, so it never stays for good.
const (
	// waitStays is how much longer it is kept than the task is known to be away, and deferralStays how long a
	// task may stand in line between two deferrals that are counted together.
	waitStays     = time.Hour
	deferralStays = 24 * time.Hour
)

// waitKey names the attempt by the retries that are left after it, which a task keeps when it is carried over.
func waitKey(j *job) string {
	return "hw:wait:{" + j.queue + "}:" + strconv.Itoa(j.retriesLeft()) + ":" + j.id
}

// keepWait keeps until the task comes again when its wait began, in µs since 1970, 0 where it carries that, and how
// often its API has put it off.
func (t *Middleware) keepWait(ctx context.Context, j *job, at time.Time) {
	since, stays := int64(0), waitStays
	if !j.since.IsZero() && !j.carriesDue() {
		since = j.since.UnixMicro()
	}
	if j.deferrals > 0 {
		stays = deferralStays
	} else if since == 0 {
		return
	}
	stays += max(0, time.Until(at))
	if err := t.cfg.Redis.Set(ctx, waitKey(j), fmt.Sprint(since, " ", j.deferrals), stays).Err(); err != nil && ctx.Err() == nil {
		t.observer.Failed("patience")
	}
}

// sinceKept reads what is kept of the wait. It returns when that began, the zero time where nothing is
// known of it, and notes the deferrals in the job.
func (t *Middleware) sinceKept(ctx context.Context, j *job) time.Time {
	var kept *redis.StringCmd
	err := redisread.FromMaster(ctx, t.cfg.Redis, func(pipe redis.Pipeliner) error {
		kept = pipe.Get(ctx, waitKey(j))
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return time.Time{}
	}
	since := int64(0)
	if err == nil {
		_, err = fmt.Sscan(kept.Val(), &since, &j.deferrals)
	}
	if err != nil && ctx.Err() == nil {
		t.observer.Failed("patience")
	}
	if err != nil || since == 0 {
		return time.Time{}
	}
	return time.UnixMicro(since)
}

// mayDefer counts a deferral, which is kept as the task is put back, and says whether it may be put off once
// more. Where Redis does not answer it may.
func (t *Middleware) mayDefer(ctx context.Context, j *job) bool {
	if t.cfg.MaxDeferrals < 0 {
		return true
	}
	if j.deferrals == 0 {
		_ = t.sinceKept(ctx, j)
	}
	j.deferrals++
	return j.deferrals <= t.cfg.MaxDeferrals
}
