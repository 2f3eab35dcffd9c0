package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// planned enqueues tasks that have their turns before they are in their queue.
func (s *system) planned(tasks ...queue.Task) {
	s.t.Helper()
	client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.throttle.cfg.Limiter})
	sum, err := client.EnqueueBatch(s.t.Context(), queue.Number(slices.Values(tasks)), nil)
	if err != nil || sum.Enqueued != len(tasks) {
		s.t.Fatalf("%+v, %v", sum, err)
	}
}

// jobs are n tasks of one scope, numbered from 0.
func jobs(n int, scope string) (tasks []queue.Task) {
	for i := range n {
		tasks = append(tasks, queue.Task{Type: "work", Scope: scope, ID: fmt.Sprintf("%s %03d", scope, i)})
	}
	return tasks
}

// order notes in which order tasks start.
type order struct {
	mu  sync.Mutex
	ids []string
}

func (o *order) handle(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids = append(o.ids, id)
	return nil
}

func (o *order) of(id string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Index(o.ids, id)
}

// from returns those that have started whose ids begin with a prefix.
func (o *order) from(prefix string) (ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range o.ids {
		if strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	return ids
}

// finish waits until n tasks have run, each once, and nothing of their turns is left.
func (s *system) finish(n int) {
	s.t.Helper()
	for range n {
		select {
		case <-s.ended:
		case <-time.After(bound):
			s.t.Fatalf("not all %d tasks have run", n)
		}
	}
	s.mu.Lock()
	for id, runs := range s.runs {
		if runs != 1 {
			s.t.Errorf("%s ran %d times", id, runs)
		}
	}
	s.mu.Unlock()
	s.until("nothing is left of the turns", func() bool { return len(s.traces()) == 0 })
}

func steady(limit int64) []policy.Rule {
	return []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second}}
}

// "pick-ups a task, planned: 1.00": turns are an order, and no time that drifts from
// the limiter, which gave each task of a window 12 pick-ups.
func TestPlannedIsPickedUpOnce(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perSecond(20), func(s *system) {
		s.planned(jobs(80, "p/a")...)
		s.serve(asynq.Config{Concurrency: 8}, nil)
		s.finish(80)
		if n := s.seen.get(func(o *seen) int { return o.pickups }); n > 84 {
			t.Errorf("%d pick-ups of 80 tasks", n)
		}
	})
}

// "First come, first served within a scope: displacement p99 at most 10 places."
func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(40), func(s *system) {
		var ran order
		tasks := jobs(80, "p/a")
		s.planned(tasks...)
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(80)
		for i, task := range tasks {
			if at := ran.of(task.ID); at > i+10 || at < i-10 {
				t.Errorf("task %d started as number %d", i, at)
			}
		}
	})
}

// "Tenants under a shared rule take turns, so that a backlog of one does not delay
// another's first task by more than its own rule asks."
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(50), func(s *system) {
		var ran order
		s.planned(jobs(120, "p/a")...)
		s.planned(jobs(5, "p/b")...)
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(125)
		if at := ran.of("p/b 004"); at > 40 {
			t.Errorf("the fifth of b started as number %d", at)
		}
	})
}

// "Priorities inside a rule."
func TestPriorities(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(40), func(s *system) {
		var ran order
		s.planned(jobs(60, "p/a")...)
		urgent := queue.Task{Type: "work", Scope: "p/b", ID: "urgent", Priority: 1}
		least := queue.Task{Type: "work", Scope: "p/c", ID: "least", Priority: -1}
		s.planned(least, urgent)
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(62)
		if first, last := ran.of("urgent"), ran.of("least"); first > 25 || last < 50 {
			t.Errorf("urgent started as number %d, least as %d", first, last)
		}
	})
}

// "A task of cost 50 gets its turn among tasks of cost 1."
func TestCostlyIsNotStarved(t *testing.T) {
	t.Parallel()
	inFakeTime(t, []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: time.Second, Burst: 50}}, func(s *system) {
		var ran order
		costly := queue.Task{Type: "work", Scope: "p/a", ID: "costly", Cost: 50}
		s.planned(append(append(jobs(100, "p/b"), costly), jobs(200, "p/c")...)...)
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(301)
		if at := ran.of("costly"); at > 200 {
			t.Errorf("it started as number %d", at)
		}
	})
}

// "What frees capacity wakes those who wait: a lease released." Where no clock can
// tell, the safety net is a minute away.
func TestFreedPlaceWakes(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 2}}, MiddlewareConfig{})
	s.planned(jobs(30, "p/a")...)
	for _, task := range jobs(10, "p/b") {
		s.addForeign(task.ID)
	}
	s.serve(asynq.Config{Concurrency: 8}, nil)
	s.finish(40)
}

// "Wake-ups that come early": somebody runs all.
func TestRunAll(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(40), func(s *system) {
		var ran order
		tasks := jobs(80, "p/a")
		s.planned(tasks...)
		if _, err := s.inspector.RunAllScheduledTasks("default"); err != nil {
			t.Fatal(err)
		}
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(80)
		for i, task := range tasks {
			if at := ran.of(task.ID); at > i+20 || at < i-20 {
				t.Errorf("task %d started as number %d: it lost its place", i, at)
			}
		}
	})
}

// hangs never tells whose turn it is, until the process stops.
func hangs(ctx context.Context, _ throttle.DispatchRequest) (throttle.Dispatched, error) {
	<-ctx.Done()
	return throttle.Dispatched{}, ctx.Err()
}

// "With the waking part alone dead things go on", and "each comes when asynq brings
// it, 3 s and half as long again after its turn was expected, and starts as soon as its units are free".
func TestNobodyWakes(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(2), MiddlewareConfig{})
	s.throttle.dispatcher.Intercept(func(dispatch.Func) dispatch.Func { return hangs })
	s.planned(jobs(3, "p/a")...)
	s.serve(asynq.Config{Concurrency: 8}, nil)
	for range 3 {
		select {
		case <-s.ended:
		case <-time.After(bound):
			t.Fatal("not all tasks have run")
		}
	}
}

// "Bounded in number, never past the task's deadline": a task that waits in line
// fails when its deadline comes, and leaves no place behind.
func TestDeadlineInLine(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "first"})
	s.serve(asynq.Config{Concurrency: 2}, nil)
	<-s.ended
	s.add(queue.Task{ID: "late", Deadline: time.Now().Add(2 * time.Second)})
	s.failsInLine("late")
	// One that was planned when it was enqueued too, as soon as it is known: long before.
	s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "planned", Deadline: time.Now().Add(30 * time.Minute)})
	s.failsInLine("planned")
	// No clock tells when the place of another comes free: so they wait until their deadlines.
	s = blocked(t, full(0), MiddlewareConfig{})
	s.add(queue.Task{ID: "late", Deadline: time.Now().Add(2 * time.Second)})
	s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "planned", Deadline: time.Now().Add(2 * time.Second)})
	s.failsInLine("late")
	s.failsInLine("planned")
}

// failsInLine waits until a task has failed and has no place in line, though its turn has
// not come.
func (s *system) failsInLine(id string) {
	s.t.Helper()
	s.until("it has failed", func() bool {
		info := s.info(id)
		return info != nil && info.State == asynq.TaskStateArchived
	})
	s.until("nobody stands in line", func() bool { return s.rdb.Exists(s.t.Context(), "hw:{p}/a!queue").Val() == 0 })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// "Tenants share by weight: with weights 1 and 3 a quarter of the starts and three, while
// both wait".
func TestTenantsShareByWeight(t *testing.T) {
	t.Parallel()
	s := newSystem(t, steady(50), MiddlewareConfig{})
	policy, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: steady(50), Scopes: map[string]policy.ScopeConfig{
		"b": {Weight: 3},
	}}})
	must(t, err)
	s.throttle.cfg.Limiter.SetPolicy(policy)
	var ran order
	s.planned(jobs(90, "p/a")...)
	s.planned(jobs(90, "p/b")...)
	s.serve(asynq.Config{Concurrency: 8}, ran.handle)
	s.finish(180)
	ran.mu.Lock()
	defer ran.mu.Unlock()
	for from := 20; from+40 <= 100; from += 20 { // after those that went straight to their queue
		b := 0
		for _, id := range ran.ids[from : from+40] {
			b += strings.Count(id, "p/b")
		}
		if b < 26 || b > 34 {
			t.Errorf("of 40 starts from %d on b had %d, and should have 30: %v", from, b, ran.ids)
		}
	}
}
