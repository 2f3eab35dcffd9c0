package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// "Ended reports a run that failed, or that the API refused and that is deferred": a run that succeeds is none.
func TestEndsAreTold(t *testing.T) {
	t.Parallel()
	told := &spendings{}
	s := newSystem(t, []policy.Rule{{Name: "few", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Hour}}, MiddlewareConfig{Usage: told})
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		switch id, _ := asynq.GetTaskID(ctx); id {
		case "fails":
			return errors.New("no such account")
		case "panics":
			panic("of the handler")
		case "refused":
			return &RefusedError{Status: 429, RetryAfter: time.Hour, known: true}
		}
		return nil
	})
	for _, id := range []string{"runs", "fails", "panics", "refused"} {
		s.add(queue.Task{ID: id, MaxRetry: queue.Retries(1)})
	}
	s.until("all is told", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return len(told.all) == 7
	})
	told.want(t, `p/a "" default work 1`, `p/a "" default work 1`, `p/a "" default work 1`, `p/a "" default work 1`,
		"ended p/a {Failed:1 Refused:0}", "ended p/a {Failed:1 Refused:0}", "ended p/a {Failed:0 Refused:1}")
}
