package worker

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// A task whose turn comes while it is being put back starts as soon as it is back, also if that takes so long that its
// grant is over, and its start could not be predicted.
func TestTurnWhilePutBack(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{100 * time.Millisecond, time.Second, 2500 * time.Millisecond, 4 * time.Second, 10 * time.Second, 20 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 100}}, func(s *system) {
				back, ends := s.holdUp(putsOwnBack), make(chan struct{})
				s.serve(asynq.Config{Concurrency: 2}, func(ctx context.Context, _ *asynq.Task) error {
					if id, _ := asynq.GetTaskID(ctx); id != "own" {
						<-ends
					}
					return nil
				})
				s.add(queue.Task{ID: "long 1"})
				s.add(queue.Task{ID: "long 2"})
				<-time.After(time.Second)
				s.add(queue.Task{ID: "own"}) // taken beyond the slots, which its tenant has
				<-back.begun
				close(ends) // its turn has come
				<-time.After(late)
				close(back.release)
				began := time.Now()
				s.until("it has run", func() bool { return s.ran("own") == 1 })
				if took := time.Since(began); took > turn {
					s.t.Errorf("it started %v after it was back", took)
				}
			})
		})
	}
}

// Its place is kept: no task behind it has its turn first.
func TestPlaceWhilePutBack(t *testing.T) {
	t.Parallel()
	for name, enqueue := range map[string]func(*system){
		"own":               func(s *system) { s.add(queue.Task{ID: "own"}) },
		"on a last attempt": func(s *system) { s.addForeign("own", asynq.MaxRetry(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, oneATurn, func(s *system) {
				back := s.holdUp(putsOwnBack)
				s.keepsItsPlace("own", func() { enqueue(s) }, 8*time.Second, back, 4*turn)
			})
		})
	}
}

// putsOwnBack says whether a command puts the task "own" back for later.
func putsOwnBack(cmd redis.Cmder) bool {
	return putsBack(cmd) && slices.Contains(scriptKeys(cmd), "asynq:{default}:t:own")
}

const turn = 200 * time.Millisecond

// oneATurn is a rule under which one task starts in each turn.
var oneATurn = []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: turn}}

// keepsItsPlace enqueues a task whose way back is held up, and a hundred behind it. Released, it must start within most.
func (s *system) keepsItsPlace(id string, enqueue func(), late time.Duration, back heldUp, most time.Duration) {
	s.t.Helper()
	tasks := jobs(110, "p/a")
	s.planned(tasks[:10]...)
	enqueue()
	s.serve(asynq.Config{Concurrency: 4}, nil)
	<-back.begun
	s.planned(tasks[10:]...)
	<-time.After(late)
	close(back.release)
	began := time.Now()
	for one := ""; one != id; one = <-s.ended {
	}
	if took := time.Since(began); took > most {
		s.t.Errorf("it started %v after it was back, and not within %v", took, most)
	}
}

// isLook tells the script that takes pending tasks from the others by its arguments: a lease, and how many.
func isLook(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) == 7 && strings.HasPrefix(cmd.Name(), "eval") && args[2] == 2 && strings.HasPrefix(fmt.Sprint(args[3]), "asynq:{")
}

// "If the reply that hands out a task never arrives, the call is sent again": asynq would bring the task in one to
// two minutes, a failure older, or archive it.
func TestLostLook(t *testing.T) {
	t.Parallel()
	for name, resend := range map[string]bool{"its reply is lost": false, "it is sent again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, perHour(100), func(s *system) {
				const n = 100
				left := 6 // replies to lose of looks that have found a task
				s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
					err := send()
					reply, _ := cmd.(*redis.Cmd)
					if err != nil || !isLook(cmd) || left == 0 {
						return err
					}
					if messages, _ := reply.StringSlice(); len(messages) == 0 {
						return err
					}
					left--
					if resend { // as go-redis does, and tells nobody
						return send()
					}
					return io.EOF
				}))
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
				if took := time.Since(began); took > asynqx.LeaseFor/5 { // one call has lost all
					t.Errorf("they took %s", took)
				}
				if left > 0 {
					t.Errorf("%d replies were not lost: the test tested less than it should", left)
				}
			})
		})
	}
}
