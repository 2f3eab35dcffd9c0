package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// "The log has one line a minute while Redis does not take them, however many tasks that concerns".
func TestUntakenEndsAreOneLine(t *testing.T) {
	t.Parallel()
	const tasks, faults = 8, 40
	var log says
	inFakeTimeUnder(t, policyOfP(t, perHour(100)), MiddlewareConfig{Logger: logTo(&log)}, func(s *system) {
		for i := range tasks {
			s.add(queue.Task{ID: fmt.Sprint("t", i)})
		}
		left := s.failEnds(faults)
		s.serve(asynq.Config{Concurrency: tasks}, nil)
		<-time.After(30 * time.Second)
		synctest.Wait()
		if log.times("\n") != 1 || log.times("level=WARN") != 1 || log.times("connection reset") != 1 || left.Load() > 0 {
			t.Errorf("the log is %s; %d faults are left", log.String(), left.Load())
		}
		if n, _ := s.counters(); n != tasks {
			t.Errorf("%d of %d are done", n, tasks)
		}
	})
}

// asynqLines is asynq's logger, and keeps its complaints.
type asynqLines struct {
	asynq.Logger // which nothing below a warning reaches
	mu           sync.Mutex
	said         []string
}

func (l *asynqLines) Warn(a ...any)  { l.keep(a) }
func (l *asynqLines) Error(a ...any) { l.keep(a) }

func (l *asynqLines) keep(a []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, fmt.Sprint(a...))
}

// "The client hides that from asynq": it would log a line, and send the script again.
func TestLostReplyOfAnEnd(t *testing.T) {
	t.Parallel()
	const tasks = 5
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	log := &asynqLines{}
	var lost atomic.Int64
	s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if err := send(); err != nil || !endsRun(cmd) || lost.Add(1) > tasks {
			return err
		}
		return errCut
	}))
	for i := range tasks {
		s.add(queue.Task{ID: fmt.Sprint("t", i)})
	}
	server := s.serve(asynq.Config{Concurrency: tasks, Logger: log, LogLevel: asynq.WarnLevel}, nil)
	s.until("the replies are lost", func() bool { return lost.Load() >= tasks })
	s.until("all are done", func() bool { n, _ := s.counters(); return n == tasks })
	server.Shutdown() // when the last have ended
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.said) > 0 {
		t.Errorf("asynq says %q", log.said)
	}
}

// "The end of one run does not end the next": what put a task back comes again while the task runs anew, also when a
// heartbeat has renewed its lease.
func TestLateCopyOfAnEnd(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, s *system, retries int, renewed time.Duration) {
		t.Helper()
		var mu sync.Mutex
		var sent [][]any // what asynq has sent to put the task back, for the network to bring it again
		s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if err == nil && putsBack(cmd) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, cmd.Args())
			}
			return err
		}))
		s.addForeign("t", asynq.MaxRetry(retries))
		late := make(chan error, 1)
		s.serve(atOnce, func(context.Context, *asynq.Task) error {
			if s.ran("t") == 1 {
				if retries == 0 { // put_back is sent, as for any limited task
					return busy{wait: time.Millisecond, known: true}
				}
				return errors.New("once more")
			}
			<-time.After(renewed)
			mu.Lock()
			again := slices.Clone(sent)
			mu.Unlock()
			for _, args := range again {
				late <- s.rdb.Do(context.Background(), args...).Err()
			}
			return nil
		})
		if err := <-late; !redis.HasErrorPrefix(err, "FENCED") {
			t.Errorf("a copy that comes late is answered %v, want FENCED", err)
		}
		s.until("it is done", func() bool { return s.info("t") == nil })
		if n := s.ran("t"); n != 2 {
			t.Errorf("it ran %d times, want twice", n)
		}
	}
	for name, retries := range map[string]int{"Redis": 5, "put_back": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newSystem(t, perHour(100), MiddlewareConfig{}), retries, 0)
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		inFakeTime(t, perHour(100), func(s *system) { run(s.t, s, 5, 20*time.Second) })
	})
}

// twice has a task fail once, and then last for long; it counts the runs, and how many there are at a time.
type twice struct {
	mu             sync.Mutex
	all, now, most int
}

func (w *twice) run(_ context.Context, _ *asynq.Task) error {
	w.mu.Lock()
	w.all, w.now = w.all+1, w.now+1
	w.most = max(w.most, w.now)
	first := w.all == 1
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now--
	}()
	if first {
		return errors.New("once more")
	}
	<-time.After(40 * time.Second)
	return nil
}

func (w *twice) wantTwo(t *testing.T) {
	t.Helper()
	<-time.After(3 * time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all != 2 || w.most != 1 {
		t.Errorf("it ran %d times, and %d at a time, want twice, one after the other", w.all, w.most)
	}
}

var atOnce = asynq.Config{Concurrency: 1, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}

// answersFirst has Redis answer so where it has first put a task back.
func (s *system) answersFirst(answer func() error) {
	var done atomic.Bool
	s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		err := send()
		if putsBack(cmd) && err == nil && done.CompareAndSwap(false, true) {
			return answer()
		}
		return err
	}))
}

// A process whose end of a run hangs renews no lease of whoever runs the task by then: its end would pass the fence.
func TestHangingEndRenewsNothing(t *testing.T) {
	t.Parallel()
	for _, hangs := range []time.Duration{4 * time.Second, 6 * time.Second, 13 * time.Second} {
		inFakeTime(t, perHour(100), func(s *system) {
			s.answersFirst(func() error {
				<-time.After(hangs)
				return io.EOF
			})
			s.addForeign("t", asynq.MaxRetry(5))
			w := &twice{}
			s.serve(atOnce, w.run)
			<-time.After(1500 * time.Millisecond)
			s.serve(atOnce, w.run)
			w.wantTwo(s.t)
		})
	}
}

// What asynq's syncer sends again shows the run that it ends, and not the next one, also after an answer that says nothing
// of whether it was carried out.
func TestSyncerSendsItsOwnEnd(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perHour(100), func(s *system) {
		s.answersFirst(func() error { return tooManyClients{} })
		s.addForeign("t", asynq.MaxRetry(5))
		w := &twice{}
		s.serve(atOnce, w.run)
		w.wantTwo(s.t)
	})
}

// tooManyClients is what Redis says to a connection that is made anew.
type tooManyClients struct{}

func (tooManyClients) Error() string { return "ERR max number of clients reached" }
func (tooManyClients) RedisError()   {}

// The end of a run that could not be sent while its lease lasted takes the task from nobody who runs it since.
func TestEndAfterTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := policyOfP(t, perHour(100))
		mini, rdb := redistest.Miniredis(t)
		s := newSystemOn(t, rdb, policy, MiddlewareConfig{})
		var cut atomic.Bool
		away := redis.NewClient(redistest.MiniredisOptions(mini))
		t.Cleanup(func() { _ = away.Close() })
		away.AddHook(redistest.Each(func(_ redis.Cmder, send func() error) error {
			if cut.Load() {
				<-time.After(200 * time.Millisecond)
				return errAway
			}
			return send()
		}))
		a := newSystemOn(t, away, policy, MiddlewareConfig{})
		s.addForeign("t", asynq.MaxRetry(5))
		a.serve(atOnce, func(context.Context, *asynq.Task) error {
			cut.Store(a.ran("t") == 1)
			return errors.New("once more")
		})
		a.until("it has run", func() bool { return cut.Load() })
		s.serve(atOnce, func(context.Context, *asynq.Task) error {
			<-time.After(2 * time.Second)
			cut.Store(false)
			<-time.After(time.Minute)
			return nil
		})
		<-s.ended
		<-time.After(2 * time.Minute)
		if n := a.ran("t") + s.ran("t"); n != 2 {
			t.Errorf("it ran %d times, want twice", n)
		}
	})
}

var (
	errAway = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errCut  = &net.OpError{Op: "read", Err: errors.New("connection reset")}
)

func scriptKeys(cmd redis.Cmder) (keys []string) {
	args := cmd.Args()
	if name, _ := args[0].(string); name != "evalsha" && name != "eval" || len(args) < 4 {
		return nil
	}
	n, _ := args[2].(int)
	for _, key := range args[3 : 3+n] {
		keys = append(keys, key.(string))
	}
	return keys
}

// endsRun tells asynq's retry, done, complete, archive and requeue from dequeue, which names the paused list.
func endsRun(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	bounded, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	return asynqx.EndsRun(bounded, keys) && strings.HasPrefix(keys[0], "asynq:") &&
		!slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":paused") })
}

// putsBack says whether a command is asynq's Retry, or put_back.
func putsBack(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	return slices.Contains(keys, "asynq:{default}:active") && slices.Contains(keys, "asynq:{default}:retry") &&
		!slices.Contains(keys, "asynq:{default}:scheduled")
}

// failEnds fails so many of the scripts that end a run, and returns how many are left to fail.
func (s *system) failEnds(n int64) (left *atomic.Int64) {
	left = new(atomic.Int64)
	left.Store(n)
	s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if endsRun(cmd) && left.Add(-1) >= 0 {
			return errCut
		}
		return send()
	}))
	return left
}

// heldUp is a command that waits on its way to Redis until it is released.
type heldUp struct{ begun, release chan struct{} }

// holdUp holds the first command up that is meant.
func (s *system) holdUp(meant func(cmd redis.Cmder) bool) heldUp {
	held := heldUp{make(chan struct{}), make(chan struct{})}
	var done atomic.Bool
	s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if meant(cmd) && done.CompareAndSwap(false, true) {
			close(held.begun)
			<-held.release
		}
		return send()
	}))
	return held
}

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
			inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: turn}}, func(s *system) {
				back, tasks := s.holdUp(putsOwnBack), jobs(110, "p/a")
				s.planned(tasks[:10]...)
				enqueue(s)
				s.serve(asynq.Config{Concurrency: 4}, nil)
				<-back.begun
				s.planned(tasks[10:]...)
				<-time.After(8 * time.Second)
				close(back.release)
				began := time.Now()
				for one := ""; one != "own"; one = <-s.ended {
				}
				if took := time.Since(began); took > 4*turn {
					s.t.Errorf("it started %v after it was back", took)
				}
			})
		})
	}
}

// putsOwnBack says whether a command puts the task "own" back for later.
func putsOwnBack(cmd redis.Cmder) bool {
	return putsBack(cmd) && slices.Contains(scriptKeys(cmd), "asynq:{default}:t:own")
}

const turn = 200 * time.Millisecond

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
				s.finish(n)
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
