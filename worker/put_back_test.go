package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// latePutBack is a hook that holds up the script by which asynq puts a task back for later, once.
type latePutBack struct {
	id             string
	held           atomic.Bool
	begun, release chan struct{}
}

func newLatePutBack(id string) *latePutBack {
	return &latePutBack{id: id, begun: make(chan struct{}), release: make(chan struct{})}
}

func (l *latePutBack) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *latePutBack) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			l.hold(cmd)
		}
		return next(ctx, cmds)
	}
}

func (l *latePutBack) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.hold(cmd)
		return next(ctx, cmd)
	}
}

func (l *latePutBack) hold(cmd redis.Cmder) {
	keys := scriptKeys(cmd)
	if slices.Contains(keys, "asynq:{default}:t:"+l.id) && slices.Contains(keys, "asynq:{default}:active") &&
		slices.Contains(keys, "asynq:{default}:retry") && l.held.CompareAndSwap(false, true) {
		close(l.begun)
		<-l.release
	}
}

// A task whose turn comes while it is being put back starts as soon as it is back, also if that takes so long that its
// grant is over, and its start could not be predicted.
func TestTurnWhilePutBack(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{100 * time.Millisecond, time.Second, 2500 * time.Millisecond, 4 * time.Second, 10 * time.Second, 20 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 100}}, func(s *system) {
				back := newLatePutBack("own")
				s.rdb.AddHook(back)
				s.startsOnceBack("own", func() { s.add(queue.Task{ID: "own"}) }, late, back.begun, back.release)
			})
		})
	}
}

// Its place is kept: no task behind it has its turn first.
func TestPlaceWhilePutBack(t *testing.T) {
	t.Parallel()
	const behind, each = 100, 200 * time.Millisecond
	inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: each}}, func(s *system) {
		back := newLatePutBack("own")
		s.rdb.AddHook(back)
		tasks := jobs(10+behind, "p/a")
		s.planned(tasks[:10]...)
		s.add(queue.Task{ID: "own"})
		s.serve(asynq.Config{Concurrency: 4}, nil)
		<-back.begun
		s.planned(tasks[10:]...)
		<-time.After(8 * time.Second)
		close(back.release)
		began := time.Now()
		for id := ""; id != "own"; id = <-s.ended {
		}
		if took, most := time.Since(began), 4*each; took > most {
			s.t.Errorf("it started %v after it was back, and not within %v", took, most)
		}
	})
}
