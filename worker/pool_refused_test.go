package worker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
)

// A row of answers makes a key that the API refuses wait by itself: its tasks go to the other members without a used attempt.
func TestRefusedKey(t *testing.T) {
	t.Parallel()
	text := strings.Replace(threeKeys, "pool:", "answers: {also: [{status: 401, wait: 5m}]}\n    pool:", 1)
	inFakeTimeUnder(t, poolPolicy(t, text), MiddlewareConfig{}, func(s *system) {
		var made calls
		var answered, retried atomic.Int64
		s.planned(jobs(300, "github/a")...)
		s.serve(asynq.Config{Concurrency: 10}, func(ctx context.Context, task *asynq.Task) error {
			_ = made.handle(ctx, task)
			if n, _ := asynq.GetRetryCount(ctx); n > 0 {
				retried.Add(1)
			}
			if Member(ctx) == "bob" {
				return ReportStatus(ctx, http.StatusUnauthorized, nil).Err()
			}
			answered.Add(1)
			return ReportStatus(ctx, http.StatusOK, nil).Err()
		})
		s.until("all are answered", func() bool { return answered.Load() == 300 })
		if n := made.of("bob"); n == 0 || n > 40 || retried.Load() > 0 {
			t.Errorf("bob was called %d times though it was refused; %d runs were retries", n, retried.Load())
		}
	})
}
