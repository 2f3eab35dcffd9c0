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
	s := newSystem(t, perHour(100), Config{})
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
	s := newSystem(t, perHour(100), Config{})
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
