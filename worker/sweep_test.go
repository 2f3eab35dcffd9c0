package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

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
