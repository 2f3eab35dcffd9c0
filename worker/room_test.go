package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// A call beside Redis grants no more than a few tasks, however many slots there are and however many tasks wait.
func TestFewAtOnceBesideRedis(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(1000), func(s *system) {
		const n = 400
		var most atomic.Int64
		dispatch := s.throttle.waker.dispatch
		s.throttle.waker.dispatch = func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			got, err := dispatch(ctx, req)
			most.Store(max(most.Load(), int64(len(got.Granted)), int64(req.Max+req.MaxReady)))
			return got, err
		}
		tasks := make([]queue.Task, n)
		for i := range tasks {
			tasks[i] = queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprint(i)}
		}
		s.planned(tasks...)
		s.serve(asynq.Config{Concurrency: 200}, nil)
		for range n {
			<-s.ended
		}
		if got := most.Load(); got == 0 || got > nearAtOnce {
			s.t.Errorf("up to %d were granted in one call, want some and no more than %d", got, nearAtOnce)
		}
	})
}
