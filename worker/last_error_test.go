package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
)

// "A completed task keeps no text of having waited", and the text of a real failure stays.
func TestCompletedTaskHasNotFailed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1, OnMaxWait: WaitOn()})
	for _, id := range []string{"a", "b", "c"} {
		s.add(queue.Task{ID: id, Remember: time.Hour})
	}
	s.addForeign("foreign", asynq.Retention(time.Hour), asynq.MaxRetry(3))
	s.add(queue.Task{ID: "unlucky", Remember: time.Hour, MaxWait: time.Hour})
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }},
		func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if n, _ := asynq.GetRetryCount(ctx); n == 0 && id == "unlucky" {
				return errors.New("bad luck")
			}
			return nil
		})
	for id, want := range map[string]string{"a": "", "b": "", "c": "", "foreign": "", "unlucky": "bad luck"} {
		s.until(id+" is completed", func() bool {
			info := s.info(id)
			return info != nil && info.State == asynq.TaskStateCompleted
		})
		info := s.info(id)
		if info.LastErr != want || info.LastFailedAt.IsZero() != (want == "") || info.Retention != time.Hour || info.CompletedAt.IsZero() {
			t.Errorf("%s: last error %q at %s, completed at %s; want %q", id, info.LastErr, info.LastFailedAt, info.CompletedAt, want)
		}
	}
	if n := s.seen.get(func(o *seen) int { return o.rescheduled }); n < 3 {
		t.Errorf("only %d reschedules: the test did not limit", n)
	}
}
