package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// What became of a task's last attempt, and whose lock it is, the master knows, whatever the
// client does with other reads.
func TestMarksComeFromTheMaster(t *testing.T) {
	t.Parallel()
	reads, _, _ := redistest.LaggingReplica(t)
	policy, err := policy.New(policy.UnmatchedAllow, nil)
	must(t, err)
	limiter, err := throttle.New(reads, policy, throttle.Config{})
	must(t, err)
	th, err := NewMiddleware(MiddlewareConfig{Redis: reads, Limiter: limiter, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx := context.Background()
	j := &job{id: "t", queue: "default", own: true, retried: 1, task: asynq.NewTask("type", nil)}
	th.mark(ctx, j, time.Minute)
	if err := th.checkExpired(ctx, j); err == nil {
		t.Error("killed in its last attempt, it may run again")
	}
	lock := j.lock()
	reads.Set(ctx, lock.Key, j.id, time.Minute)
	if left := lock.Left(ctx, reads); left <= 0 {
		t.Error("its lock is not seen")
	}
	must(t, asynqx.ExtendLocks(ctx, reads, []asynqx.Lock{lock}, []time.Time{time.Now().Add(time.Hour)}))
	if left := lock.Left(ctx, reads); left < time.Hour {
		t.Errorf("its lock stays for %v", left)
	}
}
