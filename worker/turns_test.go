package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/worker/internal/asynqx"
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

// finish waits until n tasks have run, each once, and nothing of their turns is left.
func (s *system) finish(n int) {
	s.t.Helper()
	s.haveEnded(n)
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

// "First come, first served within a scope: displacement p99 at most 10 places." "Pick-ups a task, planned: 1.00": turns are an order,
// and no time that drifts from the limiter, which gave each task of a window 12 pick-ups.
func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	for _, rules := range [][]policy.Rule{steady(40), perSecond(20)} {
		inFakeTime(t, rules, func(s *system) {
			var ran order
			tasks := jobs(80, "p/a")
			s.planned(tasks...)
			s.serve(asynq.Config{Concurrency: 8}, ran.handle)
			s.finish(80)
			for i, task := range tasks { // those of a window start at once, as the scheduler has them
				if at := ran.of(task.ID); rules[0].Algorithm == policy.TokenBucket && (at > i+10 || at < i-10) {
					t.Errorf("task %d started as number %d", i, at)
				}
			}
			if n := s.seen.get(func(o *seen) int { return o.pickups }); n > 84 {
				t.Errorf("%d pick-ups of 80 tasks under %s", n, rules[0].Algorithm)
			}
		})
	}
}

// "Tenants under a shared rule take turns, so that a backlog of one does not delay another's first task by more than its own rule asks."
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

// Priorities order the line of a scope.
func TestPriorities(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(40), func(s *system) {
		var ran order
		s.planned(jobs(60, "p/a")...)
		urgent := queue.Task{Type: "work", Scope: "p/a", ID: "urgent", Priority: 1}
		least := queue.Task{Type: "work", Scope: "p/a", ID: "least", Priority: -1}
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

// "What frees capacity wakes those who wait: a lease released." Where no clock can tell, the safety net is a minute away.
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

// hangs never tells whose turn it is, until the process stops.
func hangs(ctx context.Context, _ waitlist.Request) (waitlist.Dispatched, error) {
	<-ctx.Done()
	return waitlist.Dispatched{}, ctx.Err()
}

// "If every Headway process dies, asynq brings each task back": within ten minutes of its expected start.
func TestNobodyDispatches(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perSecond(2), func(s *system) {
		s.throttle.dispatcher.Intercept(func(dispatch.Func) dispatch.Func { return hangs })
		began := time.Now()
		s.planned(jobs(3, "p/a")...)
		for _, task := range jobs(3, "p/a") {
			if at := s.info(task.ID).NextProcessAt.Sub(began); at < 5*time.Minute || at > 10*time.Minute {
				s.t.Errorf("asynq brings %s in %s", task.ID, at)
			}
		}
		s.serve(asynq.Config{Concurrency: 8}, nil)
		<-time.After(10 * time.Minute)
		if n := s.seen.get(func(o *seen) int { return o.pickups }); n != 3 {
			s.t.Errorf("%d were picked up", n)
		}
	})
}

// "Bounded in number, never past the task's deadline": a task that waits in line fails when its deadline comes, and leaves no place behind.
// "A task past asynq's own deadline takes nothing from others": what another program gave one leaves its line when asynq fails it.
func TestDeadlineInLine(t *testing.T) {
	t.Parallel()
	s := forAnHour(t, MiddlewareConfig{})
	s.add(queue.Task{ID: "late", Deadline: time.Now().Add(2 * time.Second)})
	s.failsInLine("late")
	// One that was planned when it was enqueued too, as soon as it is known: long before.
	s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "planned", Deadline: time.Now().Add(30 * time.Minute)})
	s.failsInLine("planned")
	// No clock tells when the place of another comes free: so they wait until their deadlines.
	s = blocked(t, full(0), MiddlewareConfig{})
	s.add(queue.Task{ID: "late", Deadline: time.Now().Add(2 * time.Second)})
	s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "planned", Deadline: time.Now().Add(2 * time.Second)})
	s.addForeign("asynq's", asynq.Deadline(time.Now().Add(3*time.Second)), asynq.MaxRetry(5))
	s.archived("late")
	s.archived("planned")
	s.until("asynq has failed the other", func() bool {
		info := s.info("asynq's")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	s.onlyWait(0)
}

// failsInLine waits until a task has failed and has no place in line, though its turn has not come.
func (s *system) failsInLine(id string) {
	s.t.Helper()
	s.archived(id)
	s.onlyWait(0)
}

var must = redistest.Must

// tenants is a policy of p whose tenants start so many a second each.
func tenants(t *testing.T, limit int64) *policy.Policy {
	t.Helper()
	return policyOf(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: perSecond(limit)}}}})
}

// "Nobody waits for the slots of one tenant": its runs, of many scopes, do not end, and another's tasks run
// beside them, those that were enqueued behind all of its own, and those that wait in line.
func TestNoTenantTakesAllSlots(t *testing.T) {
	t.Parallel()
	s := newSystemUnder(t, tenants(t, 1000), MiddlewareConfig{})
	var running, most atomic.Int64
	let := make(chan struct{})
	var endless, others []queue.Task
	for i := range 32 {
		endless = append(endless, queue.Task{Type: "endless", ID: fmt.Sprint("e", i), Scope: fmt.Sprintf("p/a/%d", i%5)})
	}
	for i := range 50 {
		others = append(others, queue.Task{Type: "work", ID: fmt.Sprint("o", i), Scope: "p/b"})
	}
	for _, task := range slices.Concat(endless, others[:25]) {
		s.add(task)
	}
	server := s.serve(asynq.Config{Concurrency: 8}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() != "endless" {
			return nil
		}
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		select {
		case <-let:
		case <-ctx.Done():
		}
		return nil
	})
	s.until("tasks of another run that came behind", func() bool { return s.others(others[:25]) == 25 })
	s.planned(others[25:]...)
	s.until("tasks of another run that wait in line", func() bool { return s.others(others) == 50 })
	if most.Load() != 8 {
		t.Errorf("one tenant has had %d slots of 8", most.Load())
	}
	close(let)
	s.until("all of its own run", func() bool { return s.others(endless) == 32 })
	s.until("no slot is taken", func() bool { return server.client.Slots.Free() == 8 })
	if pickups := s.seen.get(func(o *seen) int { return o.pickups }); pickups > 3*(32+50) {
		t.Errorf("82 tasks were picked up %d times", pickups)
	}
}

// A task that has its place and its turn before it exists, since it is being enqueued, starts also if another tenant has all slots: it
// lost its place, and asynq brought it minutes later.
func TestTurnBeforeItExists(t *testing.T) {
	t.Parallel()
	s := newSystemUnder(t, tenants(t, 1000), MiddlewareConfig{})
	let := make(chan struct{})
	var running atomic.Int64
	s.serve(asynq.Config{Concurrency: 8}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "endless" {
			running.Add(1)
			select {
			case <-let:
			case <-ctx.Done():
			}
		}
		return nil
	})
	for i := range 8 {
		s.add(queue.Task{Type: "endless", ID: fmt.Sprint("e", i), Scope: "p/a"})
	}
	s.until("one tenant has all slots", func() bool { return running.Load() == 8 })
	list := s.throttle.cfg.Limiter.Waitlist()
	ref := waitlist.Ref{Scope: "p/b", Queue: "default", ID: "late"}
	_, err := list.Join(t.Context(), []waitlist.Waiter{{Scope: ref.Scope, Queue: ref.Queue, ID: ref.ID}})
	must(t, err)
	s.until("it has its turn", func() bool {
		_, granted, err := list.Standing(t.Context(), ref)
		return err == nil && granted
	})
	client := queue.NewClient(s.rdb, queue.ClientConfig{})
	_, err = client.Enqueue(t.Context(), queue.Task{Type: "work", ID: ref.ID, Scope: ref.Scope, Delay: 5 * time.Minute})
	must(t, err)
	s.until("it has run", func() bool { return s.ran(ref.ID) == 1 })
	close(let)
}

// "A tenant that is alone has all slots", and its tasks that wait in line are picked up once, but for one
// a second or so that finds out whether others have come.
func TestOneTenantIsPickedUpOnce(t *testing.T) {
	t.Parallel()
	const size, n = 16, 320
	s := newSystemUnder(t, tenants(t, 100_000), MiddlewareConfig{})
	_, err := s.throttle.cfg.Limiter.Report(t.Context(), "p/a", upstream.Hint{Limited: true, Retry: 2 * time.Second, RetryKnown: true})
	must(t, err)
	s.planned(jobs(n, "p/a")...)
	s.serve(asynq.Config{Concurrency: size}, func(ctx context.Context, _ *asynq.Task) error {
		asynqx.Sleep(ctx, 100*time.Millisecond+rand.N(300*time.Millisecond))
		return nil
	})
	s.finish(n)
	if pickups := s.seen.get(func(o *seen) int { return o.pickups }); pickups > n*3/2 { // beside busy processors some come when the last slot has just gone
		t.Errorf("%d tasks were picked up %d times", n, pickups)
	}
}

// A tenant whose runs hang is left alone: its tasks in line are not released and refused without an end, where
// another server has room for them and serves other queues either.
func TestHangingTenantIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystemUnder(t, tenants(t, 1000), MiddlewareConfig{})
	for i := range 40 {
		s.add(queue.Task{ID: fmt.Sprint(i), Scope: "p/a", Queue: "one"})
	}
	hangs := func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return nil
	}
	s.serve(asynq.Config{Concurrency: 8, Queues: map[string]int{"one": 1}}, hangs)
	s.serve(asynq.Config{Concurrency: 8, Queues: map[string]int{"two": 1}}, hangs)
	pickups := func() int { return s.seen.get(func(o *seen) int { return o.pickups }) }
	s.until("some are refused", func() bool { return pickups() >= 20 })
	<-time.After(5 * time.Second)
	if n := pickups(); n > 120 {
		t.Errorf("40 tasks were picked up %d times while 8 hang", n)
	}
}

// others is how many of the tasks have run.
func (s *system) others(tasks []queue.Task) (n int) {
	for _, task := range tasks {
		n += min(1, s.ran(task.ID))
	}
	return n
}

// "Defaults to the scope's second name."
func TestTenant(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{"p": "", "p/a": "a", "p/a/x": "a", "q/a/y/z": "a", "p/a b/x": "a b"} {
		if got := new(Middleware).tenant(scope); got != want {
			t.Errorf("tenant(%q) = %q, want %q", scope, got, want)
		}
	}
	own := &Middleware{cfg: MiddlewareConfig{Tenant: strings.ToUpper}}
	if got := own.tenant("p/a"); got != "P/A" {
		t.Errorf("a function of one's own is asked: %q", got)
	}
}
