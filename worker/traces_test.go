package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
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

// waiting is how many are said to wait of a scope and those below, in lines and in the sums that
// forecasts go by, and how many were released and have not come; -1 where these do not agree.
func (s *system) waiting(scope string) (waits, released int64) {
	s.t.Helper()
	got, err := s.throttle.cfg.Limiter.Inspect(s.t.Context(), scope)
	must(s.t, err)
	next, err := s.throttle.cfg.Limiter.Forecast(s.t.Context(), scope)
	must(s.t, err)
	if sum := next.Rules[0].Waiting; sum != got.Waiting {
		return -1, got.Dispatched
	}
	return got.Waiting, got.Dispatched
}

// onlyWait waits until so many wait of p and nobody is out, though no turn comes.
func (s *system) onlyWait(want int64) {
	s.t.Helper()
	var waits, released int64
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("at last %d were said to wait, and %d to be released", waits, released)
		}
	})
	s.until(fmt.Sprint(want, " wait"), func() bool {
		waits, released = s.waiting("p")
		return waits == want && released == 0
	})
}

// forAnHour returns a system whose limit one task has used up, with a server.
func forAnHour(t *testing.T, cfg MiddlewareConfig) *system {
	t.Helper()
	s := newSystem(t, perHour(1), cfg)
	s.add(queue.Task{ID: "spends it"})
	s.serve(asynq.Config{Concurrency: 2, Queues: map[string]int{"default": 1, "low": 1}}, nil)
	<-s.ended
	return s
}

// "Tasks that are deleted or archived by hand leave line, counts and forecasts within about
// a second, not when their turn comes": whatever the hand is, while the others keep their
// places. None has its turn in this test.
func TestByHandLeavesAtOnce(t *testing.T) {
	t.Parallel()
	const tasks = 12
	each := func(do func(*asynq.Inspector, string) error) func(*asynq.Inspector) error {
		return func(i *asynq.Inspector) (err error) {
			for n := range tasks {
				err = errors.Join(err, do(i, fmt.Sprintf("p/a %03d", n)))
			}
			return err
		}
	}
	all := func(do func(*asynq.Inspector) (int, error)) func(*asynq.Inspector) error {
		return func(i *asynq.Inspector) error {
			if n, err := do(i); err != nil || n != tasks {
				return fmt.Errorf("%d tasks: %w", n, err)
			}
			return nil
		}
	}
	for name, by := range map[string]struct {
		do    func(*asynq.Inspector) error
		stays bool
	}{
		"DeleteTask":               {each(func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) }), false},
		"ArchiveTask":              {each(func(i *asynq.Inspector, id string) error { return i.ArchiveTask("default", id) }), false},
		"RunTask":                  {each(func(i *asynq.Inspector, id string) error { return i.RunTask("default", id) }), true},
		"DeleteAllScheduledTasks":  {all(func(i *asynq.Inspector) (int, error) { return i.DeleteAllScheduledTasks("default") }), false},
		"ArchiveAllScheduledTasks": {all(func(i *asynq.Inspector) (int, error) { return i.ArchiveAllScheduledTasks("default") }), false},
		"RunAllScheduledTasks":     {all(func(i *asynq.Inspector) (int, error) { return i.RunAllScheduledTasks("default") }), true},
		"DeleteQueue":              {func(i *asynq.Inspector) error { return i.DeleteQueue("default", true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := forAnHour(t, MiddlewareConfig{})
			s.planned(jobs(tasks, "p/a")...)
			var low []queue.Task
			for _, task := range append(jobs(3, "p/a"), jobs(2, "p/b")...) {
				task.Queue = "low"
				low = append(low, task)
			}
			s.planned(low...)
			s.onlyWait(tasks + 5)
			must(t, by.do(s.inspector))
			if by.stays {
				s.until("they have been put back", func() bool { return s.seen.get(func(o *seen) int { return o.rescheduled }) >= tasks })
				s.onlyWait(tasks + 5)
				return
			}
			s.onlyWait(5)
			last := throttle.Waiter{Scope: "p/a", ID: queue.Ticket("low", "p/a 002")}
			got, err := s.throttle.cfg.Limiter.Waitlist().InspectWaiter(t.Context(), last)
			if err != nil || !got.Waits || got.Ahead != 2 || got.Expected.In > 6*time.Hour {
				t.Errorf("the last that is left stands so: %+v, %v", got, err)
			}
		})
	}
}

// The same of tasks that have been put back, in asynq's retry set.
func TestPutBackLeavesAtOnce(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]func(*asynq.Inspector) (int, error){
		"DeleteAllRetryTasks":  func(i *asynq.Inspector) (int, error) { return i.DeleteAllRetryTasks("default") },
		"ArchiveAllRetryTasks": func(i *asynq.Inspector) (int, error) { return i.ArchiveAllRetryTasks("default") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := forAnHour(t, MiddlewareConfig{})
			for i := range 3 { // fewer than are planned where they stand
				id := fmt.Sprint("foreign ", i)
				s.addForeign(id, asynq.MaxRetry(3), asynq.Unique(time.Hour))
				s.until("it waits", func() bool {
					info := s.info(id)
					return info != nil && info.State == asynq.TaskStateRetry
				})
			}
			s.onlyWait(3)
			if n, err := by(s.inspector); err != nil || n != 3 {
				t.Fatalf("%d tasks, %v", n, err)
			}
			s.onlyWait(0)
			s.untilNoTrace()
			if name == "DeleteAllRetryTasks" {
				s.addForeign("foreign 0", asynq.MaxRetry(3), asynq.Unique(time.Hour)) // asynq has let its lock go
				s.onlyWait(1)
			}
		})
	}
}

// "One that is deleted and enqueued again under the same id" is neither lost nor runs twice,
// whenever it comes between.
func TestEnqueuedAgainUnderItsID(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	began, end := make(chan struct{}), make(chan struct{})
	s.throttle.cfg.Limiter.SetPolicy(policyOfP(t, full(0)))
	s.add(queue.Task{ID: "blocks"})
	s.serve(asynq.Config{Concurrency: 4}, func(ctx context.Context, _ *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "blocks" {
			close(began)
			<-end
		}
		return nil
	})
	<-began
	s.planned(jobs(10, "p/a")...)
	for range 4 { // over more than two sweeps
		for i, task := range jobs(10, "p/a") {
			must(t, s.inspector.DeleteTask("default", task.ID))
			<-time.After(time.Duration(i) * 20 * time.Millisecond)
			s.planned(task)
		}
	}
	s.onlyWait(10)
	close(end)
	for range 11 {
		<-s.ended
	}
	for _, task := range jobs(10, "p/a") {
		if n := s.ran(task.ID); n != 1 {
			t.Errorf("%s ran %d times", task.ID, n)
		}
	}
	s.untilNoTrace()
}

func policyOfP(t *testing.T, rules []policy.Rule) *policy.Policy {
	t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
	must(t, err)
	return policy
}
