package worker

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// lostArrival is a hook that loses the reply to the first call that enqueues a carried task anew.
// A client that sends the call again does so at once.
type lostArrival struct {
	id        string
	sentAgain bool
	lost      atomic.Bool
}

func (l *lostArrival) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lostArrival) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lostArrival) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !l.arrives(cmd) || !l.lost.CompareAndSwap(false, true) {
			return next(ctx, cmd)
		}
		if err := next(ctx, cmd); err != nil { // such as NOSCRIPT
			l.lost.Store(false)
			return err
		}
		if l.sentAgain {
			return next(ctx, cmd)
		}
		err := &net.OpError{Op: "read", Err: errors.New("connection reset")}
		cmd.SetErr(err)
		return err
	}
}

// arrives tells the script by which asynq enqueues a task for later.
func (l *lostArrival) arrives(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	return len(keys) == 3 && strings.HasSuffix(keys[0], ":t:"+l.id) && keys[1] == "asynq:{default}:scheduled"
}

// lateArrival is a hook that holds up the call that enqueues a carried task anew.
type lateArrival struct {
	lostArrival
	begun, release chan struct{}
}

func newLateArrival(id string) *lateArrival {
	return &lateArrival{lostArrival{id: id}, make(chan struct{}), make(chan struct{})}
}

func (l *lateArrival) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if l.arrives(cmd) && l.lost.CompareAndSwap(false, true) {
			close(l.begun)
			<-l.release
		}
		return next(ctx, cmd)
	}
}

// startsOnceBack enqueues a task that must wait for a slot, whose way back into asynq's sets a hook holds up from begun until
// release. The task's turn comes meanwhile. It must start as soon as it is back.
func (s *system) startsOnceBack(id string, enqueue func(), late time.Duration, begun, release chan struct{}) {
	s.t.Helper()
	ends := make(chan struct{})
	s.serve(asynq.Config{Concurrency: 2}, func(ctx context.Context, _ *asynq.Task) error {
		if of, _ := asynq.GetTaskID(ctx); of != id {
			<-ends
		}
		return nil
	})
	s.add(queue.Task{ID: "long 1"})
	s.add(queue.Task{ID: "long 2"})
	<-time.After(time.Second)
	enqueue() // taken beyond the slots, which its tenant has
	<-begun
	close(ends) // its turn has come
	<-time.After(late)
	close(release)
	began := time.Now()
	s.until("it has run", func() bool { return s.ran(id) == 1 })
	if took := time.Since(began); took > 200*time.Millisecond {
		s.t.Errorf("it started %v after it was back", took)
	}
}

// "and its place is kept": no task behind it has its turn first, except the eight behind which it goes.
func TestPlaceWhileCarried(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{4 * time.Second, 8 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			const behind, each = 100, 200 * time.Millisecond
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: each}}, func(s *system) {
				carried := newLateArrival("foreign")
				s.rdb.AddHook(carried)
				tasks := jobs(10+behind, "p/a")
				s.planned(tasks[:10]...)
				s.addForeign("foreign", asynq.MaxRetry(0))
				s.serve(asynq.Config{Concurrency: 4}, nil)
				<-carried.begun
				s.planned(tasks[10:]...)
				<-time.After(late)
				close(carried.release)
				began := time.Now()
				for id := ""; id != "foreign"; id = <-s.ended {
				}
				if took, most := time.Since(began), 10*each; took > most {
					s.t.Errorf("it started %v after it was back, with %d behind it; at most %v are kept by those behind which it goes", took, behind, most)
				}
			})
		})
	}
}

// A task that is carried over runs once, also where its carrier is not told that it was
// enqueued.
func TestArrivalsReplyIsLost(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"and the call is sent again": true, "and the client gives up": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1})
			lost := &lostArrival{id: "foreign", sentAgain: again}
			s.rdb.AddHook(lost)
			s.add(queue.Task{ID: "first"})
			s.serve(asynq.Config{Concurrency: 4}, nil)
			<-s.ended
			s.addForeign("foreign", asynq.MaxRetry(0))
			<-s.ended
			s.until("its carrier has ended", func() bool {
				return s.info(asynqx.CarrierID("foreign")) == nil && s.info("foreign") == nil
			})
			if !lost.lost.Load() {
				t.Fatal("no reply was lost: the test tested nothing")
			}
			if n := s.ran("foreign"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}
