package worker

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "A limited task burns no attempt, counts as no failure, calls no ErrorHandler, and is never archived for being limited, at any max
// retry": so does one of another program on its last attempt. It waits in asynq's retry set as it is, in a paused queue too.
func TestForeignLastAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "spends it"})
	var told atomic.Int64
	s.serve(asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told.Add(1) })}, nil)
	<-s.ended
	held := s.holdUp(putsBack)
	ids, deadline := []string{"a", "b", "c", "d"}, time.Now().Add(3*time.Hour).Truncate(time.Second)
	for _, id := range ids {
		s.addForeign(id, asynq.MaxRetry(0), asynq.Retention(time.Hour), asynq.Timeout(time.Minute), asynq.Deadline(deadline), asynq.Unique(time.Hour))
	}
	whole := func(id string, in asynq.TaskState) bool {
		info := s.info(id)
		return info != nil && info.State == in && info.MaxRetry == 0 && info.Retried == 0 && info.Retention == time.Hour &&
			info.Timeout == time.Minute && info.Deadline.Equal(deadline) && string(info.Payload) == `{"id":"`+id+`"}`
	}
	<-held.begun
	must(t, s.inspector.PauseQueue("default"))
	close(held.release)
	s.until("one is put back while its queue is paused", func() bool {
		return slices.ContainsFunc(ids, func(id string) bool { return whole(id, asynq.TaskStateRetry) })
	})
	must(t, s.inspector.UnpauseQueue("default"))
	for _, id := range ids {
		s.until(id+" is put back", func() bool { return whole(id, asynq.TaskStateRetry) })
	}
	s.throttle.cfg.Limiter.SetPolicy(policyOfP(t, perHour(100)))
	s.haveEnded(len(ids))
	for _, id := range ids {
		s.is(id, asynq.TaskStateCompleted)
		if n := s.ran(id); n != 1 || !whole(id, asynq.TaskStateCompleted) {
			t.Errorf("task %s ran %d times, and is %+v", id, n, s.info(id))
		}
	}
	if n, failed := s.counters(); n != 1+len(ids) || failed != 0 || told.Load() > 0 {
		t.Errorf("asynq counts %d processed and %d failed, and %d calls of the ErrorHandler", n, failed, told.Load())
	}
}

// "A foreign task on its last attempt keeps its budget": a real failure ends it.
func TestForeignLastAttemptFails(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1})
	s.addForeign("first", asynq.MaxRetry(0))
	s.addForeign("second", asynq.MaxRetry(0))
	s.serve(asynq.Config{Concurrency: 1}, func(context.Context, *asynq.Task) error { return context.DeadlineExceeded })
	for _, id := range []string{"first", "second"} {
		s.archived(id)
		if n := s.ran(id); n != 1 {
			t.Errorf("task %s ran %d times", id, n)
		}
	}
}

// "Nothing is lost" when a process dies as it puts a task back that is on its last attempt. What it sent before waits. What it could
// not send is archived by asynq's recoverer, as the task of any worker that died.
func TestKilledAtALastAttempt(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"before it is put back": false, "after that": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, perHour(1), MiddlewareConfig{})
			s.add(queue.Task{ID: "spends it"})
			var dead atomic.Bool
			s.rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
				kills := putsBack(cmd) && slices.Contains(scriptKeys(cmd), "asynq:{default}:t:foreign")
				if kills && !arrives {
					dead.Store(true)
				}
				if dead.Load() {
					return errors.New("the process is dead")
				}
				err := send()
				if kills && err == nil {
					dead.Store(true)
					return errors.New("the process is dead")
				}
				return err
			}))
			server := s.serve(asynq.Config{Concurrency: 1}, nil)
			<-s.ended
			s.addForeign("foreign", asynq.MaxRetry(0))
			s.until("it is dead", dead.Load)
			server.Shutdown()
			rdb := s.server.Client(t)
			s.inspector = asynq.NewInspectorFromRedisClient(rdb)
			next := newSystemOn(t, rdb, policyOfP(t, perHour(100)), MiddlewareConfig{})
			if arrives {
				s.is("foreign", asynq.TaskStateRetry)
				must(t, s.inspector.RunTask("default", "foreign"))
			} else { // its lease is long over, as asynq sees it
				must(t, rdb.ZAdd(t.Context(), "asynq:{default}:lease", redis.Z{Score: 1, Member: "foreign"}).Err())
			}
			next.serve(asynq.Config{}, nil)
			if !arrives {
				s.is("foreign", asynq.TaskStateArchived)
				return
			}
			s.gone("foreign")
			if n := next.ran("foreign"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}
