package worker

import (
	"context"
	"errors"
	"fmt"
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

// "A task whose turn comes while it is being carried over starts as soon as it is back", also if its start could not be
// predicted, so that asynq would bring it back minutes later.
func TestTurnWhileCarried(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{100 * time.Millisecond, time.Second, 2500 * time.Millisecond, 10 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 100}}, func(s *system) {
				carried := newLateArrival("foreign")
				s.rdb.AddHook(carried)
				s.startsOnceBack("foreign", func() { s.addForeign("foreign", asynq.MaxRetry(0)) }, late, carried.begun, carried.release)
			})
		})
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

// lateReply is a hook that has the reply lost to the call that enqueues a carried task anew, when the
// task has ended.
type lateReply struct {
	*lateArrival
	sentAgain bool // the client sends the call again by itself
}

func (l lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !l.arrives(cmd) || l.lost.Load() {
			return next(ctx, cmd)
		}
		if err := next(ctx, cmd); err != nil { // such as NOSCRIPT
			return err
		}
		l.lost.Store(true)
		close(l.begun)
		<-l.release
		if l.sentAgain {
			return next(ctx, cmd)
		}
		err := &net.OpError{Op: "read", Err: errors.New("connection reset")}
		cmd.SetErr(err)
		return err
	}
}

// "A task that is carried over runs once", also if it has ended before its carrier learns that it was
// enqueued, whether or not asynq keeps what has ended.
func TestArrivesLateAfterItsEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fails  error
		retain time.Duration
		ends   asynq.TaskState // 0: it is gone
	}{
		"gone":      {nil, 0, 0},
		"completed": {nil, time.Hour, asynq.TaskStateCompleted},
		"archived":  {errors.New("it fails"), 0, asynq.TaskStateArchived},
	} {
		for _, sentAgain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sent again %t", name, sentAgain), func(t *testing.T) {
				t.Parallel()
				inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 100}}, func(s *system) {
					reply, ends := lateReply{newLateArrival("foreign"), sentAgain}, make(chan struct{})
					s.rdb.AddHook(reply)
					s.serve(asynq.Config{Concurrency: 3}, func(ctx context.Context, _ *asynq.Task) error {
						if id, _ := asynq.GetTaskID(ctx); id == "foreign" {
							return test.fails
						}
						<-ends
						return nil
					})
					for _, id := range []string{"long 1", "long 2", "long 3"} {
						s.add(queue.Task{ID: id})
					}
					<-time.After(time.Second)
					s.addForeign("foreign", asynq.MaxRetry(0), asynq.Retention(test.retain))
					<-reply.begun
					close(ends) // its turn comes
					hasEnded := func() bool {
						info := s.info("foreign")
						return s.ran("foreign") == 1 && (info == nil && test.ends == 0 || info != nil && info.State == test.ends)
					}
					s.until("it has ended", hasEnded)
					close(reply.release)
					s.until("its carrier has ended", func() bool { return s.info(asynqx.CarrierID("foreign")) == nil })
					<-time.After(time.Second)
					if !hasEnded() {
						s.t.Errorf("it ran %d times, and is %+v", s.ran("foreign"), s.info("foreign"))
					}
				})
			})
		}
	}
}

// A carried task that has its place is picked up when its turn comes, and not before, also if it costs more than others.
func TestCostlyTaskIsCarriedToItsPlace(t *testing.T) {
	t.Parallel()
	for _, cost := range []string{"1", "2", "requests=2,tokens=9"} {
		t.Run(cost, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 2, Per: 10 * time.Second}}, func(s *system) {
				s.serve(asynq.Config{}, nil)
				s.add(queue.Task{ID: "first", Cost: 2})
				<-s.ended
				task := asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: "p/a", queue.HeaderCost: cost})
				if _, err := s.client.Enqueue(task, asynq.TaskID("foreign"), asynq.MaxRetry(0)); err != nil {
					s.t.Fatal(err)
				}
				<-s.ended
				if n := s.seen.get(func(o *seen) int { return o.pickups }); n != 3 {
					s.t.Errorf("%d pick-ups: one of the first task, and two of the other, before it was carried over and for its start", n)
				}
			})
		})
	}
}

// A carrier that somebody archived brings nothing back: a task that is enqueued again under the same id is not left to it.
func TestCarrierWasArchived(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perSecond(1), func(s *system) {
		old := asynqx.CarrierID("foreign")
		if _, err := s.client.Enqueue(asynq.NewTask(asynqx.CarrierType, nil), asynq.TaskID(old)); err != nil {
			s.t.Fatal(err)
		}
		if err := s.inspector.ArchiveTask("default", old); err != nil {
			s.t.Fatal(err)
		}
		s.planned(jobs(3, "p/a")...)
		s.addForeign("foreign", asynq.MaxRetry(0))
		s.serve(asynq.Config{}, nil)
		s.until("it has run", func() bool { return s.ran("foreign") == 1 })
		if n := s.seen.get(func(o *seen) int { return len(o.faults) }); n != 1 {
			s.t.Errorf("%d faults are told, want one, of the carrier", n)
		}
	})
}
