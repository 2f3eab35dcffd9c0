package worker

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// busy is what a handler says whose API is limited itself.
type busy struct {
	wait  time.Duration
	known bool
}

func (busy) Error() string { return "the API is limited" }
func (b busy) DeferBy() (wait time.Duration, known, deferred bool) {
	return b.wait, b.known, b != busy{}
}

// "It burns no attempt by it, at any max retry": tasks of our own and of other programs,
// on their last attempt too, come back after the wait, and are no failures.
func TestDeferredByTheAPI(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(0))
	s.addForeign("more", asynq.MaxRetry(5))
	var calls, told atomic.Int64
	byTask := map[string]*atomic.Int64{"own": {}, "foreign": {}, "more": {}}
	s.serve(asynq.Config{
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told.Add(1) }),
	}, func(ctx context.Context, _ *asynq.Task) error {
		calls.Add(1)
		id, _ := asynq.GetTaskID(ctx)
		if retried, _ := asynq.GetRetryCount(ctx); retried != 0 {
			t.Errorf("%s: attempt %d", id, retried)
		}
		if byTask[id].Add(1) <= 2 {
			return fmt.Errorf("call: %w", busy{wait: 300 * time.Millisecond, known: true})
		}
		return nil
	})
	s.until("each has run three times", func() bool {
		return byTask["own"].Load() == 3 && byTask["foreign"].Load() == 3 && byTask["more"].Load() == 3
	})
	if calls.Load() != 9 || told.Load() != 0 {
		t.Errorf("%d calls, %d failures told", calls.Load(), told.Load())
	}
}

// An error that says that it is not deferred is a failure, and one that does not say for
// how long comes back in some ten seconds.
func TestDeferredByWhat(t *testing.T) {
	t.Parallel()
	if _, deferred := deferredBy(busy{}); deferred {
		t.Error("an error that is not deferred was taken for one that is")
	}
	if _, deferred := deferredBy(nil); deferred {
		t.Error("no error was taken for one that is deferred")
	}
	for range 50 {
		wait, deferred := deferredBy(busy{wait: 1})
		if !deferred || wait < deferPause || wait > deferPause+deferPause/10 {
			t.Fatalf("%v, %t", wait, deferred)
		}
	}
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(0)})
	s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { return busy{} })
	s.until("it is archived", func() bool {
		info := s.info("t")
		return info != nil && info.State == asynq.TaskStateArchived
	})
	if text := s.info("t").LastErr; !strings.Contains(text, "the API is limited") {
		t.Errorf("it failed with %q", text)
	}
}

// "MaxDeferrals is how often the API of a task may put it off within one attempt": what comes after that
// is a failure as any other, so that no API keeps a task for ever; each attempt begins to count anew.
func TestDeferralsEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{MaxDeferrals: 2})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "again", MaxRetry: queue.Retries(1)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	cfg := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}
	s.serve(cfg, func(context.Context, *asynq.Task) error { return busy{wait: 10 * time.Millisecond, known: true} })
	for id, want := range map[string]int{"own": 3, "again": 6, "foreign": 6} {
		if why := s.archived(id); !strings.Contains(why, "the API is limited") {
			t.Errorf("%s failed with %q", id, why)
		}
		if n := s.ran(id); n != want {
			t.Errorf("%s ran %d times, want %d", id, n, want)
		}
	}
}

// "Where OnMaxWait is set a max_wait bounds it too": the time counts in which the API puts a task off.
func TestDeferralsEndByMaxWait(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: time.Second, Burst: 100, MaxWait: time.Second}
	s := newSystem(t, []policy.Rule{rule}, MiddlewareConfig{OnMaxWait: Fail(), MaxDeferrals: -1})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(3)})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { return busy{wait: 100 * time.Millisecond, known: true} })
	for _, id := range []string{"own", "foreign"} {
		if why := s.archived(id); !strings.Contains(why, "its max_wait is 1s") {
			t.Errorf("%s failed with %q", id, why)
		}
		if info := s.info(id); info.Retried != 0 || s.ran(id) < 1 {
			t.Errorf("%s: %d retries, %d runs", id, info.Retried, s.ran(id))
		}
	}
}
