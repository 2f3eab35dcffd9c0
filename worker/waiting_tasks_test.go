package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func (s *system) waitingTasks() *WaitingTasks { return NewWaitingTasks(s.rdb, s.throttle.cfg.Limiter) }

// outcome has a task changed, and checks what became of it.
func (s *system) outcome(want TaskOutcome) func(TaskOutcome, error) {
	return func(got TaskOutcome, err error) {
		s.t.Helper()
		if err != nil || got != want {
			s.t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
}

// Each change of a waiting task gives it the headers with which a worker knows it again, and has it come soon. What is pending or not
// due is changed where it is.
func TestWaitingTasksAreChanged(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	if d, err := s.throttle.cfg.Limiter.Allow(t.Context(), "p/a"); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	w, ctx := s.waitingTasks(), t.Context()
	for i := range 5 {
		s.planned(queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprint(i), Cost: 1})
	}
	s.outcome(TaskChanged)(w.SetPriority(ctx, "default", "3", 5))
	s.outcome(TaskChanged)(w.RunNext(ctx, "default", "2"))
	s.outcome(TaskChanged)(w.SetScope(ctx, "default", "1", "p/b"))
	s.outcome(TaskChanged)(w.Cancel(ctx, "default", "0"))
	if s.info("0") != nil {
		t.Error("a cancelled task is there")
	}
	if h := s.info("3").Headers; h[queue.HeaderPriority] != "5" || h[queue.HeaderScope] != "p/a" {
		t.Errorf("%v", h)
	}
	if h := s.info("1").Headers; h[queue.HeaderScope] != "p/b" {
		t.Errorf("%v", h)
	}
	s.outcome(TaskChanged)(w.SetPriority(ctx, "default", "3", 0))
	if _, has := s.info("3").Headers[queue.HeaderPriority]; has {
		t.Error("it has a priority")
	}
	for _, id := range []string{"1", "2", "3"} {
		if info := s.info(id); info.State != asynq.TaskStateScheduled || time.Until(info.NextProcessAt) > 62*time.Second {
			t.Errorf("%s is %s, and asynq brings it %s", id, info.State, info.NextProcessAt)
		}
	}

	s.outcome(TaskGone)(w.Cancel(ctx, "default", "none"))
	s.outcome(TaskGone)(w.RunNext(ctx, "none", "4"))
	if _, err := w.SetPriority(ctx, "default", "4", policy.MaxPriority+1); err == nil {
		t.Error("a priority out of bounds")
	}
	if _, err := w.SetScope(ctx, "default", "4", "q/x"); !errors.As(err, new(*policy.UnmatchedError)) {
		t.Errorf("moved where no rule is: %v", err)
	}

	s.add(queue.Task{ID: "pending"})
	s.outcome(TaskPending)(w.RunNext(ctx, "default", "pending"))
	s.outcome(TaskChanged)(w.SetScope(ctx, "default", "pending", "p/c"))
	if info := s.info("pending"); info.State != asynq.TaskStatePending || info.Headers[queue.HeaderScope] != "p/c" {
		t.Errorf("%+v", info)
	}
	s.add(queue.Task{ID: "later", Delay: time.Hour})
	s.outcome(TaskChanged)(w.SetPriority(ctx, "default", "later", 3))
	if info := s.info("later"); info.State != asynq.TaskStateScheduled || time.Until(info.NextProcessAt) < 50*time.Minute || info.Headers[queue.HeaderPriority] != "3" {
		t.Errorf("%+v", info)
	}
	s.outcome(TaskChanged)(w.RunNext(ctx, "default", "later"))
	if info := s.info("later"); info.State != asynq.TaskStatePending {
		t.Errorf("%+v", info)
	}
	_, err := s.client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID("bare"), asynq.ProcessIn(time.Hour))
	must(t, err)
	s.outcome(TaskNoScope)(w.SetScope(ctx, "default", "bare", "p/a"))
	s.outcome(TaskChanged)(w.Cancel(ctx, "default", "bare"))
}

// A task that was granted its start keeps it, and its units, whatever is asked for.
func TestDispatchedTasksAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	w, ctx, waitlist := s.waitingTasks(), t.Context(), s.throttle.cfg.Limiter.Waitlist()
	ask := throttle.Waiter{Scope: "p/a", ID: queue.Ticket("default", "one")}
	s.add(queue.Task{ID: "one", Delay: time.Hour})
	if joined, err := waitlist.Join(ctx, []throttle.Waiter{ask}, 0, throttle.QueueAll); err != nil || !joined[0].Waits {
		t.Fatalf("%+v, %v", joined, err)
	}
	got, err := waitlist.Dispatch(ctx, throttle.DispatchRequest{Provider: "p", Max: 1})
	if err != nil || len(got.Granted) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	s.outcome(TaskDispatched)(w.RunNext(ctx, "default", "one"))
	s.outcome(TaskDispatched)(w.SetPriority(ctx, "default", "one", 1))
	s.outcome(TaskDispatched)(w.SetScope(ctx, "default", "one", "p/b"))
	if _, granted, err := waitlist.Standing(ctx, ask.Ref()); err != nil || !granted || s.info("one").Headers[queue.HeaderScope] != "p/a" {
		t.Errorf("granted %t, %v, %v", granted, err, s.info("one").Headers)
	}
	if d, err := s.throttle.cfg.Limiter.Allow(ctx, "p/b"); err != nil || d.Allowed {
		t.Errorf("its units came back: %+v, %v", d, err)
	}
}

// Whatever people do while tasks start, each runs once, or not at all if it was cancelled, and no limit is exceeded.
func TestTasksChangedWhileTheyStart(t *testing.T) {
	t.Parallel()
	const limit, tasks = 50, 150
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}}, MiddlewareConfig{})
	s.planned(jobs(tasks/2, "p/a")...)
	s.planned(jobs(tasks/2, "p/b")...)
	var starts []time.Time
	var mu sync.Mutex
	s.serve(asynq.Config{Concurrency: 16}, func(context.Context, *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		starts = append(starts, time.Now())
		return nil
	})
	w, cancelled := s.waitingTasks(), map[string]bool{}
	for i := range tasks {
		id := fmt.Sprintf("p/%c %03d", "ab"[i%2], (i*37)%(tasks/2))
		var got TaskOutcome
		var err error
		switch i % 4 {
		case 0:
			got, err = w.RunNext(t.Context(), "default", id)
		case 1:
			got, err = w.SetPriority(t.Context(), "default", id, i%7-3)
		case 2:
			got, err = w.SetScope(t.Context(), "default", id, "p/"+string("cab"[i%3]))
		default:
			got, err = w.Cancel(t.Context(), "default", id)
			cancelled[id] = got == TaskChanged
		}
		if err != nil {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
	left := tasks
	for _, gone := range cancelled {
		if gone {
			left--
		}
	}
	if left == tasks {
		t.Error("no task was cancelled in time")
	}
	s.finish(left)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.runs {
		if cancelled[id] {
			t.Errorf("%s was cancelled, and ran", id)
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i := range len(starts) - limit {
		if d := starts[i+limit].Sub(starts[i]); d < time.Second-20*time.Millisecond { // the handler's clock runs a little later
			t.Errorf("%d starts within %s", limit+1, d)
		}
	}
}
