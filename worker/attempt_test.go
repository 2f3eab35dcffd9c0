package worker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// "Attempt returns which attempt of its task a handler runs, and how many the task has at most", whatever asynq says of it.
func TestAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Second}}, MiddlewareConfig{Hold: -1})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(2)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	s.addForeign("once", asynq.MaxRetry(0))
	s.addForeign("once more", asynq.MaxRetry(0))
	s.foreign("unlimited", nil, asynq.MaxRetry(1))
	// A worker has died before the start: asynq counts a failure, and the task has its last attempt all the same.
	s.add(queue.Task{ID: "recovered", MaxRetry: queue.Retries(0)})
	must(t, s.rdb.LRem(t.Context(), "asynq:{default}:pending", 0, "recovered").Err())
	must(t, s.rdb.LPush(t.Context(), "asynq:{default}:active", "recovered").Err())
	must(t, s.rdb.ZAdd(t.Context(), "asynq:{default}:lease", redis.Z{Score: 1, Member: "recovered"}).Err())
	must(t, s.rdb.HSet(t.Context(), "asynq:{default}:t:recovered", "state", "active").Err())
	want := map[string][][2]int{
		"own": {{1, 3}, {2, 3}, {3, 3}}, "foreign": {{1, 2}, {2, 2}}, "once": {{1, 1}}, "once more": {{1, 1}}, "unlimited": {{1, 2}, {2, 2}}, "recovered": {{1, 1}},
	}
	got := map[string][][2]int{}
	s.serve(atOnce, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		attempt, budget := Attempt(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		got[id] = append(got[id], [2]int{attempt, budget})
		return errors.New("once more")
	})
	for id := range want {
		s.archived(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, want := range want {
		if !slices.Equal(got[id], want) {
			t.Errorf("%s: attempts %v, want %v", id, got[id], want)
		}
	}
	if attempt, budget := Attempt(t.Context()); attempt != 0 || budget != 0 {
		t.Errorf("outside of a handler: %d of %d", attempt, budget)
	}
}
