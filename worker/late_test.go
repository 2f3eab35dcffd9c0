package worker

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// lateMark is a hook that holds up the first mark of a last attempt.
type lateMark struct{ done atomic.Bool }

func (*lateMark) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*lateMark) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lateMark) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if key := argument(cmd); cmd.Name() == "set" && strings.HasPrefix(key, "hw:run:") && l.done.CompareAndSwap(false, true) {
			<-time.After(300 * time.Millisecond)
		}
		return next(ctx, cmd)
	}
}

// "The promise covers starts as the handler sees them; a run that would start
// later than the pad decides again", also where the mark of a last attempt is what
// is late.
func TestLateMark(t *testing.T) {
	t.Parallel()
	const per = 400 * time.Millisecond
	s := newSystem(t, []throttle.Rule{{Name: "r", Algorithm: throttle.SlidingWindow, Limit: 1, Per: per}}, Config{})
	s.rdb.AddHook(&lateMark{})
	starts := make(chan time.Time, 2)
	s.add(queue.Task{ID: "first", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "second", MaxRetry: queue.Retries(0)})
	s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error {
		starts <- time.Now()
		return nil
	})
	one, two := <-starts, <-starts
	if apart := two.Sub(one).Abs(); apart < per {
		t.Errorf("two starts within %v; the limit is one in %v", apart, per)
	}
}

func argument(cmd redis.Cmder) string {
	if len(cmd.Args()) < 2 {
		return ""
	}
	text, _ := cmd.Args()[1].(string)
	return text
}

// "nothing that others may hold up comes between" a start that was in time and its run
func TestNothingHoldsAStartUp(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []throttle.Rule{{Name: "r", Algorithm: throttle.TokenBucket, Limit: 10, Per: time.Second}}, Config{})
	waker := s.throttle.waker
	s.seen.onHold = func() { // before its start is due, and until it has run
		waker.starved.Store(true)
		waker.mu.Lock()
	}
	var runs atomic.Int64
	s.add(queue.Task{ID: "goes"})
	s.add(queue.Task{ID: "holds"})
	s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error {
		if runs.Add(1) == 2 {
			waker.mu.Unlock()
		}
		return nil
	})
	for range 2 {
		select {
		case <-s.ended:
		case <-time.After(bound):
			waker.mu.Unlock()
			t.Fatal("a start waits for who looks after those that wait")
		}
	}
}
