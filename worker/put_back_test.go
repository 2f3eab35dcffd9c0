package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
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

// losing has replies lost of looks that have found a task.
type losing struct {
	redis.Hook

	left   atomic.Int32 // how many
	pipes  atomic.Int32 // and of how many pipelines
	resend bool         // the client sends the look again, as go-redis does, and tells nobody
}

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err != nil || !isLook(cmds[0]) || l.pipes.Add(-1) < 0 {
			return err
		}
		if l.resend {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds[1:] { // the first has its reply
			cmd.SetErr(io.EOF)
		}
		return io.EOF
	}
}

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if reply, is := cmd.(*redis.Cmd); !is || err != nil || !isLook(cmd) || reply.Val() == nil || l.left.Add(-1) < 0 {
			return err
		}
		if l.resend {
			return next(ctx, cmd)
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

// isLook tells asynq's look from its other scripts by its keys.
func isLook(cmd redis.Cmder) bool {
	args := cmd.Args()
	if len(args) < 7 || !strings.HasPrefix(cmd.Name(), "eval") || args[2] != 4 {
		return false
	}
	last, _ := args[6].(string)
	return strings.HasSuffix(last, "}:lease")
}

// "What a look has taken and not brought goes back to pending as soon as Redis answers": asynq would bring it in one to
// two minutes, a failure older, or archive it.
func TestLostLook(t *testing.T) {
	t.Parallel()
	for name, resend := range map[string]bool{"its reply is lost": false, "it is sent again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, perHour(100), func(s *system) {
				const n, lost = 100, 3
				hook := &losing{resend: resend}
				hook.left.Store(lost)
				hook.pipes.Store(lost)
				s.rdb.AddHook(hook)
				for i := range n {
					s.addForeign(fmt.Sprint(i), asynq.MaxRetry(0))
				}
				began := time.Now()
				s.serve(asynq.Config{Concurrency: 40}, nil)
				for i := range n {
					select {
					case <-s.ended:
					case <-time.After(asynqx.LeaseFor):
						t.Fatalf("%d of %d have run after %s", i, n, time.Since(began))
					}
				}
				if took := time.Since(began); took > asynqx.LeaseFor/10 {
					t.Errorf("they took %s", took)
				}
				if left, pipes := hook.left.Load(), hook.pipes.Load(); left > 0 || pipes > 0 {
					t.Errorf("%d replies and %d of pipelines were not lost: the test tested less than it should", left, pipes)
				}
			})
		})
	}
}
