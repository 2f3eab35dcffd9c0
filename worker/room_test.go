package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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

// "Looks grant what starts within more time where few tasks do", and nothing that is more than 250 ms ahead: of a slow limit
// each look grants several, and of one that is quick no more than before.
func TestSlowLimitsAreGrantedSeveralAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rate        int64
		least, most float64 // tasks a look
		ahead       time.Duration
	}{
		{10, 2, 3, 250 * time.Millisecond},
		{20, 3, 5, 250 * time.Millisecond},
		{100, 5, 12, 150 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(test.rate), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, steady(test.rate), func(s *system) {
				const n = 60
				var looks, granted atomic.Int64
				var ahead atomic.Int64
				dispatch := s.throttle.waker.dispatch
				s.throttle.waker.dispatch = func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
					got, err := dispatch(ctx, req)
					for _, g := range got.Granted {
						ahead.Store(max(ahead.Load(), int64(g.Wait)))
					}
					if len(got.Granted) > 0 && granted.Add(int64(len(got.Granted))) > 10 { // it is known how many there are
						looks.Add(1)
					}
					return got, err
				}
				s.planned(jobs(n, "p/a")...)
				s.serve(asynq.Config{Concurrency: 10}, nil)
				s.finish(n)
				each := float64(granted.Load()-10) / float64(looks.Load())
				if each < test.least || each > test.most {
					s.t.Errorf("%.1f tasks a look", each)
				}
				if got := time.Duration(ahead.Load()); got > test.ahead {
					s.t.Errorf("a start is %v ahead", got)
				}
			})
		})
	}
}
