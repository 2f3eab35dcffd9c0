package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// traces are the keys of ours that stand for tasks: none may be left when there are none.
// Rules, run times, what an API answered, attempts and tasks that were granted their starts have keys that expire by themselves.
func (s *system) traces() (keys []string) {
	for _, key := range s.rdb.Keys(s.t.Context(), "hw:*").Val() {
		_, part, line := strings.Cut(key, "!")
		stay := part == "flight" || part == "overdue" || part == "answers" || strings.HasPrefix(part, "runs")
		if line && !stay || strings.HasPrefix(key, "hw:run:") || strings.HasPrefix(key, "hw:plan:") || strings.HasPrefix(key, "hw:leaving:") {
			keys = append(keys, key)
		}
	}
	return keys
}

func (s *system) untilNoTrace() {
	s.t.Helper()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("left: %q", s.traces())
		}
	})
	s.until("no trace is left", func() bool { return len(s.traces()) == 0 })
}

// "Waiting tasks that are deleted, archived or run by hand through asynq's inspector or
// asynqmon leave no trace behind in our state."
func TestNoTraceOfTasksMovedByHand(t *testing.T) {
	t.Parallel()
	each := func(do func(*asynq.Inspector, string) error) func(*asynq.Inspector) error {
		return func(i *asynq.Inspector) error {
			var errs []error
			for n := range 40 {
				errs = append(errs, do(i, fmt.Sprintf("p/a %03d", n)))
			}
			return errors.Join(errs...)
		}
	}
	of := func(all func(*asynq.Inspector) (int, error)) func(*asynq.Inspector) error {
		return func(i *asynq.Inspector) error {
			if n, err := all(i); err != nil || n < 30 {
				return fmt.Errorf("%d tasks: %w", n, err)
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		by   func(*asynq.Inspector) error
		runs bool // what stood in asynq's scheduled set
	}{
		"DeleteTask":               {each(func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) }), false},
		"ArchiveTask":              {each(func(i *asynq.Inspector, id string) error { return i.ArchiveTask("default", id) }), false},
		"RunTask":                  {each(func(i *asynq.Inspector, id string) error { _ = i.RunTask("default", id); return nil }), true},
		"DeleteAllScheduledTasks":  {of(func(i *asynq.Inspector) (int, error) { return i.DeleteAllScheduledTasks("default") }), false},
		"ArchiveAllScheduledTasks": {of(func(i *asynq.Inspector) (int, error) { return i.ArchiveAllScheduledTasks("default") }), false},
		"RunAllScheduledTasks":     {of(func(i *asynq.Inspector) (int, error) { return i.RunAllScheduledTasks("default") }), true},
		"DeleteQueue":              {func(i *asynq.Inspector) error { return i.DeleteQueue("default", true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, steady(40), MiddlewareConfig{})
			s.planned(jobs(40, "p/a")...)
			if len(s.traces()) == 0 {
				t.Fatal("nobody waits: the test tests nothing")
			}
			must(t, tt.by(s.inspector))
			s.planned(jobs(5, "p/b")...) // who stands behind them has its turn
			s.serve(asynq.Config{Concurrency: 8}, nil)
			for range 5 {
				<-s.ended
			}
			s.untilNoTrace()
			s.until("the others have run", func() bool {
				n := 0
				for _, task := range jobs(5, "p/b") {
					n += s.ran(task.ID)
				}
				return n == 5
			})
			if n := s.ran("p/a 020"); (n == 1) != tt.runs || n > 1 {
				t.Errorf("one that was moved by hand ran %d times", n)
			}
		})
	}
}

// "So do those that end because their patience does."
func TestNoTraceOfEnded(t *testing.T) {
	t.Parallel()
	nothing := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	for name, patience := range map[string]MaxWaitPolicy{
		"Fail": Fail(), "Drop": Drop(nil), "MoveTo": MoveTo("slow"), "Fallback": Fallback(nothing),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, unblock := blockedUntil(t, full(short), MiddlewareConfig{OnMaxWait: patience})
			for i := range 4 {
				s.add(queue.Task{ID: fmt.Sprint("own ", i), MaxRetry: queue.Retries(i % 2)})
				s.addForeign(fmt.Sprint("foreign ", i), asynq.MaxRetry(i%2))
			}
			s.until("they have ended", func() bool { return s.seen.get(func(o *seen) int { return len(o.became) }) == 8 })
			// Their turn has not come.
			s.until("nobody stands in line", func() bool { return s.rdb.Exists(t.Context(), "hw:{p}/a!queue").Val() == 0 })
			unblock()
			s.untilNoTrace()
			s.until("the place is free", func() bool { // who waits for it has no patience
				d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
				return err == nil && d.Allowed
			})
			// On a busy machine the next may lose its patience too, as a place can be set aside
			// until who was released and does not come counts as lost.
			ran := func() int {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.runs)
			}
			for n := 1; ran() < 2 && n < 60; n++ {
				s.add(queue.Task{ID: fmt.Sprint("after ", n)})
				s.until("the next task runs, or has ended", func() bool {
					return ran() == 2 || s.seen.get(func(o *seen) int { return len(o.became) }) >= 8+n
				})
			}
			if ran() != 2 {
				t.Errorf("%d tasks ran, want the one that held the place and the next", ran())
			}
		})
	}
}
