package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/waiting"
)

// traces are the keys of ours that stand for tasks: none may be left when there are none.
// States of rules, run times, what an API answered and attempts have keys that expire by themselves.
func (s *system) traces() (keys []string) {
	for _, key := range s.rdb.Keys(s.t.Context(), "hw:*").Val() {
		_, part, _ := strings.Cut(key, "}:")
		line := slices.ContainsFunc([]string{"q:", "ready", "left", "blocked", "recheck", "rules", "costs", "units", "flight"}, func(kind string) bool {
			return strings.HasPrefix(part, kind)
		})
		if line || strings.HasPrefix(key, "hw:run:") || strings.HasPrefix(key, "hw:plan:") || strings.HasPrefix(key, "hw:leaving:") {
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

// waiting is how many are said to wait of a scope and those below, in lines and in the sums that
// forecasts go by, and how many were released and have not come; -1 where these do not agree.
func (s *system) waiting(scope string) (waits, released int64) {
	s.t.Helper()
	got, err := inspect.Of(s.throttle.cfg.Limiter.Waitlist()).Scope(s.t.Context(), scope)
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

// Tasks that are deleted or archived by hand leave line, counts and forecasts with the next sweep, not when their turn comes:
// whatever the hand is, while the others keep their places. When all have had their turn no trace is left of any.
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
			} else {
				s.onlyWait(5)
				last := waitlist.Ref{Scope: "p/a", Queue: "low", ID: "p/a 002"}
				got, err := inspect.Of(s.throttle.cfg.Limiter.Waitlist()).Task(t.Context(), last)
				if err != nil || !got.Waits || got.Ahead != 2 || got.Expected.In > 6*time.Hour {
					t.Errorf("the last that is left stands so: %+v, %v", got, err)
				}
			}
			s.throttle.cfg.Limiter.SetPolicy(policyOfP(t, perHour(1000)))
			s.until("the others have run", func() bool { return s.others(low) == 5 })
			s.untilNoTrace()
			if n := s.ran("p/a 005"); (n == 1) != by.stays || n > 1 {
				t.Errorf("one that was moved by hand ran %d times", n)
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
				s.is(id, asynq.TaskStateRetry)
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

// "One that is deleted and enqueued again under the same id" is neither lost nor runs twice, whenever it comes between.
func TestEnqueuedAgainUnderItsID(t *testing.T) {
	t.Parallel()
	s, unblock := blockedUntil(t, full(0), MiddlewareConfig{})
	s.planned(jobs(10, "p/a")...)
	for range 4 { // over more than two sweeps
		for i, task := range jobs(10, "p/a") {
			must(t, s.inspector.DeleteTask("default", task.ID))
			<-time.After(time.Duration(i) * 20 * time.Millisecond)
			s.planned(task)
		}
	}
	s.onlyWait(10)
	unblock()
	s.haveEnded(11)
	for _, task := range jobs(10, "p/a") {
		if n := s.ran(task.ID); n != 1 {
			t.Errorf("%s ran %d times", task.ID, n)
		}
	}
	s.untilNoTrace()
}

func policyOf(t *testing.T, limits map[string]policy.ScopeConfig) *policy.Policy {
	t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, limits)
	must(t, err)
	return policy
}

func policyOfP(t *testing.T, rules []policy.Rule) *policy.Policy {
	t.Helper()
	return policyOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules}})
}

func never(int, error, *asynq.Task) time.Duration { return time.Hour }

// What asynq does to a task that is held, or about to be picked up, without asking: it leaves
// what it has to others, at once, and comes back by asynq's own delay.
func TestCancelProcessing(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: 4 * time.Second}}, MiddlewareConfig{Hold: 5 * time.Second})
	held := make(chan struct{}, 1)
	s.seen.onHold = func() { // also for each start that is late on a busy machine
		select {
		case held <- struct{}{}:
		default:
		}
	}
	s.add(queue.Task{ID: "first"})
	s.serve(asynq.Config{Concurrency: 4, RetryDelayFunc: never}, nil)
	<-s.ended
	select {
	case <-held:
	default:
	}
	s.add(queue.Task{ID: "cancelled"})
	<-held
	s.until("asynq has cancelled it", func() bool {
		must(t, s.inspector.CancelProcessing("cancelled"))
		info := s.info("cancelled")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	s.add(queue.Task{ID: "next"})
	s.until("the next has what it was granted", func() bool { return s.ran("next") == 1 })
	s.onlyWait(0)
	s.untilNoTrace()
	if n := s.ran("cancelled"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

// A task whose time-out, asynq's own, passes while its limits cannot answer does not wait in line for longer than asynq keeps it.
func TestTimeoutWhileDeciding(t *testing.T) {
	t.Parallel()
	s := forAnHour(t, MiddlewareConfig{})
	s.addForeign("waits", asynq.Timeout(time.Hour), asynq.MaxRetry(5))
	s.onlyWait(1)
	// Its handler has been called and is over, as asynq sees it, before it is denied.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := &job{task: asynq.NewTask("work", nil), id: "waits", queue: "default", scope: "p/a"}
	if err := s.throttle.denied(ctx, j, throttle.Decision{Joins: true}); err == nil {
		t.Error("it is not told to have ended")
	}
	s.onlyWait(0)
}

// asynq's recoverer brings back, or archives, a task in line whose process died when it had been denied and not yet put back.
func TestRecoveredInLine(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	if d, err := s.throttle.cfg.Limiter.Allow(t.Context(), "p/a"); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for id, retries := range map[string]int{"comes back": 3, "is archived": 0} {
		s.addForeign(id, asynq.MaxRetry(retries))
		_, err := s.throttle.cfg.Limiter.Waitlist().Join(t.Context(), []waitlist.Waiter{{Scope: "p/a", Queue: "default", ID: id}})
		must(t, err)
		s.abandon(id)
	}
	s.serve(asynq.Config{Concurrency: 2, RetryDelayFunc: never}, nil)
	s.archived("is archived")
	s.onlyWait(1)
	s.until("it to be brought back", func() bool {
		info := s.info("comes back")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	if got, err := inspect.Of(s.throttle.cfg.Limiter.Waitlist()).Task(t.Context(), waitlist.Ref{Scope: "p/a", Queue: "default", ID: "comes back"}); err != nil || !got.Waits {
		t.Errorf("%+v, %v: it has lost its place", got, err)
	}
}

func (s *system) waitingTasks() *waiting.Tasks { return waiting.New(s.rdb, s.throttle.cfg.Limiter) }

// outcome has a task changed, and checks what became of it.
func (s *system) outcome(want waiting.Outcome) func(waiting.Outcome, error) {
	return func(got waiting.Outcome, err error) {
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
	header := func(id, name, want string, state asynq.TaskState, least, most time.Duration) {
		t.Helper()
		info := s.info(id)
		if at := time.Until(info.NextProcessAt); info.Headers[name] != want || info.State != state || at < least || at > most {
			t.Errorf("%s is %s in %s with %v", id, info.State, at, info.Headers)
		}
	}
	for i := range 4 {
		s.planned(queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprint(i), Cost: 1})
	}
	s.outcome(waiting.Changed)(w.SetPriority(ctx, "default", "3", 5))
	header("3", queue.HeaderPriority, "5", asynq.TaskStateScheduled, 0, 10*time.Minute)
	s.outcome(waiting.Changed)(w.SetPriority(ctx, "default", "3", 0))
	header("3", queue.HeaderPriority, "", asynq.TaskStateScheduled, 0, 10*time.Minute)
	s.outcome(waiting.Changed)(w.RunNext(ctx, "default", "2"))
	header("2", queue.HeaderScope, "p/a", asynq.TaskStateScheduled, 0, 10*time.Minute)
	s.outcome(waiting.Changed)(w.SetScope(ctx, "default", "1", "p/b"))
	header("1", queue.HeaderScope, "p/b", asynq.TaskStateScheduled, 0, 10*time.Minute)
	s.outcome(waiting.Changed)(w.Cancel(ctx, "default", "0"))
	s.outcome(waiting.Gone)(w.Cancel(ctx, "default", "0"))
	s.outcome(waiting.Gone)(w.RunNext(ctx, "none", "3"))

	s.add(queue.Task{ID: "pending"})
	s.outcome(waiting.Pending)(w.RunNext(ctx, "default", "pending"))
	s.outcome(waiting.Changed)(w.SetScope(ctx, "default", "pending", "p/c"))
	header("pending", queue.HeaderScope, "p/c", asynq.TaskStatePending, -bound, bound)
	s.add(queue.Task{ID: "later", Delay: time.Hour})
	s.outcome(waiting.Changed)(w.SetPriority(ctx, "default", "later", 3))
	header("later", queue.HeaderPriority, "3", asynq.TaskStateScheduled, 50*time.Minute, 2*time.Hour)
	s.outcome(waiting.Changed)(w.RunNext(ctx, "default", "later"))
	header("later", queue.HeaderPriority, "3", asynq.TaskStatePending, -bound, bound)
	s.foreign("bare", nil, asynq.ProcessIn(time.Hour))
	s.outcome(waiting.NoScope)(w.SetScope(ctx, "default", "bare", "p/a"))
	s.outcome(waiting.Changed)(w.Cancel(ctx, "default", "bare"))
}

// A task that was granted its start keeps it, and its units, whatever is asked for.
func TestDispatchedTasksAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	w, ctx, list := s.waitingTasks(), t.Context(), s.throttle.cfg.Limiter.Waitlist()
	ask := waitlist.Waiter{Scope: "p/a", Queue: "default", ID: "one"}
	s.add(queue.Task{ID: "one", Delay: time.Hour})
	if joined, err := list.Join(ctx, []waitlist.Waiter{ask}); err != nil || joined[0].Err != nil {
		t.Fatalf("%+v, %v", joined, err)
	}
	got, err := list.Dispatch(ctx, waitlist.Request{Provider: "p", Max: 1, Serves: []wire.Weighted{{Queue: "default", Weight: 1}}})
	if err != nil || len(got.Granted) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	s.outcome(waiting.Dispatched)(w.RunNext(ctx, "default", "one"))
	s.outcome(waiting.Dispatched)(w.SetPriority(ctx, "default", "one", 1))
	s.outcome(waiting.Dispatched)(w.SetScope(ctx, "default", "one", "p/b"))
	if _, granted, err := list.Standing(ctx, ask.Ref()); err != nil || !granted || s.info("one").Headers[queue.HeaderScope] != "p/a" {
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
		got, err := []func() (waiting.Outcome, error){
			func() (waiting.Outcome, error) { return w.RunNext(t.Context(), "default", id) },
			func() (waiting.Outcome, error) { return w.SetPriority(t.Context(), "default", id, i%7-3) },
			func() (waiting.Outcome, error) {
				return w.SetScope(t.Context(), "default", id, "p/"+string("cab"[i%3]))
			},
			func() (waiting.Outcome, error) { return w.Cancel(t.Context(), "default", id) },
		}[i%4]()
		must(t, err)
		if i%4 == 3 && got == waiting.Changed {
			cancelled[id] = true
		}
	}
	if len(cancelled) == 0 {
		t.Error("no task was cancelled in time")
	}
	s.finish(tasks - len(cancelled))
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
