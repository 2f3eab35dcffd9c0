package project

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// docs/leaving.md, step by step: one task runs under Headway, and five wait. After "worker leave", and without Headway's keys, a
// bare worker runs them.
func TestLeavingAsWritten(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	limits, err := worker.New(rdb, worker.Config{
		Limits: policy.PerHour("api", 1), Logger: slog.New(slog.DiscardHandler), NoMetrics: true,
	})
	must(t, err)
	enqueueBothWays(t, rdb)
	var ran atomic.Int64
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran.Add(1)
		return nil
	})
	headways := limits.NewServer(asynq.Config{Concurrency: 4})
	must(t, headways.Start(handler))
	redistest.WaitFor(t, "one to run and five to wait", 2*time.Minute, func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && ran.Load() == 1 && info.Retry+info.Scheduled == 5
	})
	headways.Shutdown()

	left := output(t, 0, "", "worker", "leave", "-redis", "redis://"+server.Addr(), "-queues", "default")
	if strings.Contains(left, " 0 tasks") {
		t.Errorf("worker leave: %s", left)
	}
	for i := range 3 {
		if info, err := inspector.GetTaskInfo("default", fmt.Sprint("own-", i)); err == nil && info.MaxRetry != 0 {
			t.Errorf("%s has max retry %d, want what is left of its own", info.ID, info.MaxRetry)
		}
	}
	for _, key := range keys(t, rdb, "*") {
		if !strings.HasPrefix(key, "asynq:") && !strings.HasPrefix(key, "hw:") {
			t.Errorf("the key %s is neither asynq's nor begins with hw:", key)
		}
	}
	if own := keys(t, rdb, "hw:*"); len(own) == 0 || len(keys(t, rdb, "hw:leaving:*")) > 0 {
		t.Errorf("keys after leaving: %q", own)
	} else {
		must(t, rdb.Unlink(t.Context(), own...).Err())
	}

	bare := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond})
	must(t, bare.Start(handler))
	t.Cleanup(bare.Shutdown)
	for _, all := range []func(string) (int, error){inspector.RunAllRetryTasks, inspector.RunAllScheduledTasks} {
		_, err := all("default")
		must(t, err)
	}
	redistest.WaitFor(t, "the bare worker to run all", 2*time.Minute, func() bool { return ran.Load() == 6 })
	if own := keys(t, rdb, "hw:*"); len(own) > 0 {
		t.Errorf("a bare worker wrote %q", own)
	}
}

// enqueueBothWays enqueues three tasks by package queue and three by asynq's client.
func enqueueBothWays(t *testing.T, rdb *redis.Client) {
	t.Helper()
	own, others := queue.NewClient(rdb, queue.ClientConfig{}), asynq.NewClientFromRedisClient(rdb)
	for i := range 3 {
		_, err := own.Enqueue(t.Context(), queue.Task{Type: "call", Scope: "api", ID: fmt.Sprint("own-", i), MaxRetry: queue.Retries(0)})
		must(t, err)
		task := asynq.NewTaskWithHeaders("call", nil, map[string]string{queue.HeaderScope: "api"})
		_, err = others.EnqueueContext(t.Context(), task, asynq.MaxRetry(0))
		must(t, err)
	}
}

func keys(t *testing.T, rdb *redis.Client, pattern string) []string {
	t.Helper()
	found, err := rdb.Keys(t.Context(), pattern).Result()
	must(t, err)
	return found
}

// "Under these limits a task of pay ments/{acme} has the keys below it", and every one of them has a TTL.
func TestKeysAreAsWritten(t *testing.T) {
	t.Parallel()
	page := parsePage("docs/keys.md", section(t, "docs/keys.md", "Names"))
	if len(page.blocks) != 2 {
		t.Fatalf("docs/keys.md has %d blocks under Names, want the limits and the keys", len(page.blocks))
	}
	policy, err := limitsyaml.Parse("docs/keys.md", []byte(page.blocks[0].text))
	must(t, err)
	rdb := redistest.NewServer(t).Client(t)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	ctx := t.Context()
	d, err := limiter.Decide(ctx, throttle.Request{Scope: "pay ments/{acme}", ID: "ATTEMPT"})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	var got strings.Builder
	for _, key := range slices.Sorted(slices.Values(keys(t, rdb, "*"))) {
		fmt.Fprintf(&got, "%s %s\n", key, rdb.Type(ctx, key).Val())
		if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 {
			t.Errorf("%s has no TTL", key)
		}
	}
	if got.String() != page.blocks[1].text {
		t.Errorf("Redis has\n%s, and docs/keys.md\n%s", got.String(), page.blocks[1].text)
	}
}
