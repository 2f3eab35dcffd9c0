package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// "Attempt returns which attempt of its task a handler runs, and how many the task has at most", whatever asynq says of it: the budget of
// our own is in a header, and another program's task keeps its own, on its last attempt too. After it the task is archived with its own text.
func TestAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Second}}, MiddlewareConfig{Hold: -1})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(2)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	s.addForeign("once", asynq.MaxRetry(0))
	s.addForeign("once more", asynq.MaxRetry(0))
	s.foreign("unlimited", nil, asynq.MaxRetry(1))
	s.add(queue.Task{ID: "panics", MaxRetry: queue.Retries(1)})
	want := map[string][][2]int{
		"own": {{1, 3}, {2, 3}, {3, 3}}, "foreign": {{1, 2}, {2, 2}}, "once": {{1, 1}}, "once more": {{1, 1}}, "unlimited": {{1, 2}, {2, 2}},
		"panics": {{1, 2}, {2, 2}},
	}
	got := map[string][][2]int{}
	s.serve(atOnce, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		attempt, budget := Attempt(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		got[id] = append(got[id], [2]int{attempt, budget})
		if id == "panics" {
			panic("once more")
		}
		return errors.New("once more")
	})
	for id := range want {
		if text := s.archived(id); !strings.Contains(text, "once more") || strings.Contains(text, "skip retry") || strings.Contains(text, "goroutine") {
			t.Errorf("%s: its last error is %q", id, text)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, want := range want {
		if !slices.Equal(got[id], want) {
			t.Errorf("%s: attempts %v, want %v", id, got[id], want)
		}
	}
	if attempt, budget := Attempt(t.Context()); attempt != 0 || budget != 0 {
		t.Errorf("outside of a handler: %d of %d", attempt, budget)
	}
}

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

// "Nothing is lost" when a process dies as it puts a task back that is on its last attempt. What it sent before waits. What it could
// not send is archived by asynq's recoverer, as the task of any worker that died.
func TestKilledAtALastAttempt(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"before it is put back": false, "after that": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, perHour(1), MiddlewareConfig{})
			s.add(queue.Task{ID: "spends it"})
			dead := killedBy(s.rdb, arrives, func(cmd redis.Cmder) bool {
				return putsBack(cmd) && slices.Contains(scriptKeys(cmd), "asynq:{default}:t:foreign")
			})
			server := s.serve(asynq.Config{Concurrency: 1}, nil)
			<-s.ended
			s.addForeign("foreign", asynq.MaxRetry(0))
			s.until("it is dead", dead.Load)
			server.Shutdown()
			rdb := s.server.Client(t)
			s.inspector = asynq.NewInspectorFromRedisClient(rdb)
			next := newSystemOn(t, rdb, policyOfP(t, perHour(100)), MiddlewareConfig{})
			next.server = s.server
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
