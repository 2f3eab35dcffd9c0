package peers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/upstream"
)

// What differs from tests/rate_limiter.test.ts of BullMQ. BullMQ needs Node, so the figures are those of its tests. What becomes of a
// limit that changes and of an API that asks for time is held by the tests of package worker and of test/sim.

// refusal is an answer of an API that says to come back later: BullMQ's rateLimit(ms) and RateLimitError.
type refusal time.Duration

func (r refusal) Error() string {
	return fmt.Sprintf("the API wants to be asked in %s", time.Duration(r))
}

func (r refusal) DeferBy() (wait time.Duration, known, deferred bool) {
	return time.Duration(r), true, true
}

// pauses tells the limiter of a refusal, which pauses the scope for all.
func (r refusal) pauses(st *stage) {
	_, err := st.limiter.Report(context.Background(), "api", upstream.Hint{Limited: true, Retry: time.Duration(r), RetryKnown: true})
	st.must(err)
}

func TestBullMQ(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		differs string
		most    int // in per, as BullMQ's limiter: {max, duration}
		per     time.Duration
		do      func(*stage)
	}{
		{"Where a limited task stands", 1, time.Second, func(st *stage) {
			for i := range 5 {
				st.must(st.add(fmt.Sprint(i)))
			}
			st.serve(asynq.Config{Concurrency: 5}, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				defer func() { <-time.After(200 * time.Millisecond) }()
				return st.always(nil).ProcessTask(ctx, task)
			}))
			st.after(1100 * time.Millisecond) // theirs looks after 100 ms; a server of asynq's looks once a second
			info, err := st.inspector.GetQueueInfo("default")
			st.must(err)
			if held := info.Retry + info.Scheduled; len(st.starts) == 0 || held == 0 || info.Failed != 0 || info.Archived != 0 {
				st.t.Errorf("after %d starts %d wait in asynq's sets: %+v", len(st.starts), held, info)
			}
		}},
		{"Windows", 2, time.Second, func(st *stage) {
			for i := range 10 {
				st.must(st.add(fmt.Sprint(i)))
			}
			st.serve(asynq.Config{}, st.always(nil))
			st.after(15 * time.Second)
			if n := len(st.starts); n != 10 {
				st.t.Fatalf("%d of 10 tasks ran", n)
			}
			for i := 2; i < 10; i++ {
				if gap := st.starts[i] - st.starts[i-2]; gap < time.Second {
					st.t.Errorf("starts %d and %d are %s apart", i-2, i, gap)
				}
			}
			if took := st.starts[9] - st.starts[0]; took > 4500*time.Millisecond {
				st.t.Errorf("10 tasks took %s, want 4 s: %v", took, st.starts)
			}
		}},
		{"Attempts", 1, 100 * time.Millisecond, func(st *stage) {
			st.must(st.add("a", asynq.MaxRetry(1)))
			const wait = 550 * time.Millisecond
			st.serve(asynq.Config{}, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				retried, _ := asynq.GetRetryCount(ctx)
				st.note("%d retries", retried) // theirs says 1 and 2 attempts
				err := error(refusal(wait))
				if len(st.starts) == 0 {
					refusal(wait).pauses(st)
				} else {
					err = asynq.SkipRetry
				}
				return st.always(err).ProcessTask(ctx, task)
			}))
			st.after(time.Minute)
			want := []string{"0 retries", "a runs", "0 retries", "a runs", `a: archived, retried 0 of 1, "skip retry for the task"`}
			if got := st.seen(); !slices.Equal(got[:len(got)-1], want) || st.starts[1]-st.starts[0] < wait {
				st.t.Errorf("%q at %v", got, st.starts)
			}
		}},
		{"Priorities", 1, 100 * time.Millisecond, func(st *stage) {
			refusal(5 * time.Second).pauses(st)
			client := queue.NewClient(st.rdb, queue.ClientConfig{Limiter: st.limiter})
			for i, n := range []int{1, 2, 1, 2} { // theirs; ours go the other way
				_, err := client.Enqueue(st.t.Context(), queue.Task{Type: "work", Scope: "api", ID: fmt.Sprint(i + 1), Priority: -n})
				st.must(err)
			}
			st.serve(asynq.Config{Concurrency: 1}, st.always(nil))
			st.after(30 * time.Second)
			if want := []string{"1 runs", "3 runs", "2 runs", "4 runs"}; !slices.Equal(st.notes, want) {
				st.t.Errorf("got %q", st.notes)
			}
		}},
	} {
		t.Run(c.differs, func(t *testing.T) {
			t.Parallel()
			decided(t, c.differs)
			synctest.Test(t, func(t *testing.T) {
				// "answers: pause": an API's answers pause, as BullMQ's do, and cut nothing.
				c.do(newStage(t, fmt.Sprintf(`limits: {api: {answers: pause, rules: [{name: rule, algorithm: sliding-window, limit: %d, per: %s}]}}`, c.most, c.per)))
			})
		})
	}
}
