package traps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// shop is a queue of its own, its workers and what they ran.
type shop struct {
	*world
	queue     string
	inspector *asynq.Inspector
	tasks     *queue.Client
	foreign   *asynq.Client

	mu     sync.Mutex
	starts []start
	failed []error
}

// start is a run as its handler sees it.
type start struct {
	id, scope string
	at        time.Time
}

func newShop(w *world) *shop {
	if w.mini != nil {
		w.mini.ClockTTL(false) // it would walk over all keys with each command; no task needs it
	}
	return &shop{
		world: w, queue: w.prefix,
		inspector: asynq.NewInspectorFromRedisClient(w.rdb),
		tasks:     queue.NewClient(w.rdb, queue.ClientConfig{}),
		foreign:   asynq.NewClientFromRedisClient(w.rdb),
	}
}

func (s *shop) add(tasks ...queue.Task) {
	s.Helper()
	for _, task := range tasks {
		task.Type, task.Queue = "work", s.queue
		if task.Scope == "" {
			task.Scope = "p/x"
		}
		if task.MaxRetry == nil {
			task.MaxRetry = queue.Retries(0)
		}
		if _, err := s.tasks.Enqueue(context.Background(), task); err != nil {
			s.Fatal(err)
		}
	}
}

// addForeign enqueues with asynq alone, on its last attempt.
func (s *shop) addForeign(id string) {
	s.Helper()
	task := asynq.NewTaskWithHeaders("work", []byte(id), map[string]string{queue.HeaderScope: "p/x"})
	if _, err := s.foreign.Enqueue(task, asynq.TaskID(id), asynq.Queue(s.queue), asynq.MaxRetry(0)); err != nil {
		s.Fatal(err)
	}
}

// open starts a worker process; what it returns stops it.
func (s *shop) open(policy *policy.Policy, cfg worker.MiddlewareConfig, handler asynq.HandlerFunc) (stop func()) {
	s.Helper()
	deciding := throttle.Config{Prefix: s.prefix}
	if s.mini != nil {
		deciding.StartTolerance = 100 * ms // its replies are late under the race detector, and late starts are decided anew
	}
	limiter, err := throttle.New(s.rdb, policy, deciding)
	if err != nil {
		s.Fatal(err)
	}
	cfg.Redis, cfg.Limiter = s.rdb, limiter
	limits, err := worker.NewMiddleware(cfg)
	if err != nil {
		s.Fatal(err)
	}
	server := limits.NewServer(asynq.Config{
		Concurrency: 8, Queues: map[string]int{s.queue: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 20 * ms, DelayedTaskCheckInterval: 100 * ms,
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			s.mu.Lock()
			s.failed = append(s.failed, err)
			s.mu.Unlock()
		}),
	})
	if err := server.Start(s.noting(handler)); err != nil {
		s.Fatal(err)
	}
	var once sync.Once
	stop = func() { once.Do(server.Shutdown) }
	s.Cleanup(stop)
	return stop
}

func (s *shop) noting(handler asynq.HandlerFunc) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		s.mu.Lock()
		s.starts = append(s.starts, start{id, task.Headers()[queue.HeaderScope], time.Now()})
		s.mu.Unlock()
		if handler == nil {
			return nil
		}
		return handler(ctx, task)
	}
}

func (s *shop) ran() []start {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.starts)
}

// until waits for what asynq's inspector tells, which is asked rarely: it walks
// over much of the queue, and miniredis over all its keys with each command.
func (s *shop) until(what string, cond func() bool) {
	s.Helper()
	last := time.Time{}
	redistest.WaitFor(s, what, bound, func() bool {
		if time.Since(last) < 100*ms {
			return false
		}
		last = time.Now()
		return cond()
	})
}

// done waits until n tasks have ended well, and returns the runs.
func (s *shop) done(n int) []start {
	s.Helper()
	redistest.WaitFor(s, fmt.Sprintf("%d tasks to run", n), bound, func() bool { return len(s.ran()) >= n })
	s.until("them to be done", func() bool {
		info, err := s.inspector.GetQueueInfo(s.queue)
		return err == nil && info.ProcessedTotal-info.FailedTotal >= n
	})
	return s.ran()
}

// roomy is a sliding window with room for how late a start is seen by its
// handler on a machine that has much else to do.
func roomy(limit int64, per time.Duration) policy.Rule {
	rule := sliding(limit, per)
	rule.Margin = 500 * ms
	return rule
}

// onceEach fails the test unless every id ran once.
func (s *shop) onceEach(runs []start, n int) {
	s.Helper()
	count := map[string]int{}
	for _, r := range runs {
		count[r.id]++
	}
	for id, c := range count {
		if c != 1 {
			s.Errorf("%s ran %d times", id, c)
		}
	}
	if len(count) != n {
		s.Errorf("%d tasks ran, want %d", len(count), n)
	}
}

// noFailure fails the test when asynq counts a failure or archived a task.
func (s *shop) noFailure() {
	s.Helper()
	info, err := s.inspector.GetQueueInfo(s.queue)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || info.FailedTotal != 0 || info.Archived != 0 || len(s.failed) != 0 {
		s.Errorf("asynq counts %d failed, %d archived, and told of %v; %v", info.FailedTotal, info.Archived, s.failed, err)
	}
}

// within fails the test when more than n runs start in any window.
func (s *shop) within(runs []start, n int, window time.Duration) {
	s.Helper()
	slices.SortFunc(runs, func(a, b start) int { return a.at.Compare(b.at) })
	for i := n; i < len(runs); i++ {
		if gap := runs[i].at.Sub(runs[i-n].at); gap < window {
			s.Errorf("%d starts in %v, where %d may start in %v", n+1, gap, n, window)
		}
	}
}

// A limited task on its last attempt is not archived, burns no
// attempt and tells no ErrorHandler, whoever enqueued it.
func TestLastAttempt(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		s := newShop(w)
		for i := range 12 {
			s.add(queue.Task{ID: fmt.Sprint("own ", i)})
			s.addForeign(fmt.Sprint("foreign ", i))
		}
		s.open(w.policy(sliding(12, sec)), worker.MiddlewareConfig{Hold: -1}, nil)
		redistest.WaitFor(s, "24 tasks to run", bound, func() bool { return len(s.ran()) >= 24 })
		s.onceEach(s.ran(), 24)
		s.noFailure()
	})
}

// What asynq brings back early, late and in clumps starts within
// its limit all the same, in any window, as its handler sees it.
func TestNeverInBulk(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]time.Duration{"held": 0, "put back": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) {
				s := newShop(w)
				for i := range 50 {
					s.add(queue.Task{ID: fmt.Sprint(i)})
				}
				s.open(w.policy(roomy(20, sec)), worker.MiddlewareConfig{Hold: hold}, nil)
				redistest.WaitFor(s, "some to wait", bound, func() bool { return len(s.ran()) >= 20 })
				_, _ = s.inspector.RunAllRetryTasks(s.queue) // what asynq's own tools may do
				runs := s.done(50)
				s.onceEach(runs, 50)
				s.within(runs, 20, sec)
				s.noFailure()
			})
		})
	}
}

// A task is charged when it runs, not when it is picked up, put
// back, or has no time left to run in.
func TestChargedPerRun(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		s := newShop(w)
		day := policy.Rule{Name: "day", Algorithm: policy.SlidingWindow, Limit: 1000, Per: 24 * hour}
		for i := range 15 {
			s.add(queue.Task{ID: fmt.Sprint(i), Cost: 2})
		}
		late := time.Now().Add(50 * ms)
		s.add(queue.Task{ID: "late", Deadline: late})
		redistest.WaitFor(w, "the deadline to pass", bound, func() bool { return time.Now().After(late) })
		s.open(w.policy(day, sliding(10, sec)), worker.MiddlewareConfig{Hold: -1}, nil)
		s.onceEach(s.done(15), 15)
		s.until("the late one to be archived", func() bool {
			info, err := s.inspector.GetTaskInfo(s.queue, "late")
			return err == nil && info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, "deadline")
		})
		l := w.limiter(day)
		if left := l.left(); left != 1000-15*2 {
			w.Errorf("%d of 1000 are left after 15 runs of cost 2", left)
		}
	})
}

// What waits is found by the next worker when the first has gone.
func TestFoundAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		s := newShop(w)
		for i := range 6 {
			s.add(queue.Task{ID: fmt.Sprint(i)})
		}
		stop := s.open(w.policy(roomy(2, sec)), worker.MiddlewareConfig{}, nil)
		redistest.WaitFor(s, "the first to run", bound, func() bool { return len(s.ran()) >= 2 })
		stop()
		before := len(s.ran())
		s.open(w.policy(roomy(2, sec)), worker.MiddlewareConfig{}, nil)
		runs := s.done(6)
		s.onceEach(runs, 6)
		s.within(runs, 2, sec)
		if before == 6 {
			w.Error("nothing was left for the second worker: the test tested nothing")
		}
	})
}

// Tasks with no limit in the way, and delayed ones, run while others
// wait, and disturb nobody's wait.
func TestOthersGoOn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		s := newShop(w)
		policy := w.parsed(`limits: {p: {scopes: {slow: {rules: [{name: r, algorithm: sliding-window, limit: 4, per: 1s, margin: 500ms}]},
			free: {rules: [{name: r, algorithm: sliding-window, limit: 1000000, per: 1s}]}}}}`)
		for i := range 18 {
			s.add(queue.Task{ID: fmt.Sprint("slow ", i), Scope: "p/slow"})
		}
		s.open(policy, worker.MiddlewareConfig{}, nil)
		redistest.WaitFor(s, "the slow to wait", bound, func() bool { return len(s.ran()) >= 4 })
		for i := range 20 {
			s.add(queue.Task{ID: fmt.Sprint("free ", i), Scope: "p/free"},
				queue.Task{ID: fmt.Sprint("delayed ", i), Scope: "p/free", Delay: time.Second})
		}
		runs := s.done(58)
		s.onceEach(runs, 58)
		var slow []start
		last := map[string]int{}
		for i, r := range runs {
			last[strings.Fields(r.id)[0]] = i
			if r.scope == "p/slow" {
				slow = append(slow, r)
			}
		}
		if last["free"] > last["slow"] {
			w.Error("one with no limit in the way ran last")
		}
		s.within(slow, 4, sec)
		s.noFailure()
	})
}

// A task that waits in its handler for longer than the
// lease of the place that it will have has it when it starts, and alone.
//
// On a real Redis leases are so long that a busy machine renews them in time: a run
// whose lease is lost ends, as it should.
func TestHeldLongerThanItsLease(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		heldLonger(onReal(t), 2, 5*sec)
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m, rdb := redistest.Miniredis(t)
			heldLonger(newWorld(t, rdb, m), 6, sec)
		})
	})
}

func heldLonger(w *world, tasks int, lease time.Duration) {
	s := newShop(w)
	var mu sync.Mutex
	running, most := 0, 0
	for i := range tasks {
		s.add(queue.Task{ID: fmt.Sprint(i)})
	}
	per := lease * 5 / 4
	s.open(w.policy(bucket(1, per, 1), places(1, lease)), worker.MiddlewareConfig{Hold: 4 * lease}, func(ctx context.Context, _ *asynq.Task) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		defer func() { mu.Lock(); running--; mu.Unlock() }()
		select {
		case <-time.After(lease * 3 / 2): // longer than the lease, and than the next unit takes
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	s.onceEach(s.done(tasks), tasks)
	s.noFailure()
	if most != 1 {
		w.Errorf("%d ran at once", most)
	}
}

// Names that could be taken for others, from the queue to the run: each tenant
// has its own limit, and none spends another's.
func TestHostileNamesEndToEnd(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		s := newShop(w)
		policy := w.parsed(`limits: {"*": {rules: [{name: "r:1", algorithm: fixed-window, limit: 1000, per: 1h}], scopes: {"*": {
			rules: [{name: "{r}", algorithm: sliding-window, limit: 1, per: 1h}, {name: "p*", algorithm: concurrency, limit: 1}]}}}}`)
		scopes := 0
		for i, name := range hostile {
			for j, scope := range []string{"p/" + name, name + "/p"} {
				if w.mini != nil && i%2 == j {
					continue // its scripts take long
				}
				if strings.HasPrefix(scope, "policy/") || strings.HasSuffix(scope, "/p") && name == "p" {
					continue
				}
				scopes++
				for n := range 2 { // the second waits for an hour
					s.add(queue.Task{ID: fmt.Sprintf("%d/%d %s", i, n, scope), Scope: scope})
				}
			}
		}
		s.open(policy, worker.MiddlewareConfig{}, nil)
		s.done(scopes)
		s.until("the others to wait", func() bool {
			info, err := s.inspector.GetQueueInfo(s.queue)
			return err == nil && info.Retry+info.Scheduled == scopes
		})
		count := map[string]int{}
		for _, r := range s.ran() {
			count[r.scope]++
		}
		for scope, n := range count {
			if n != 1 {
				w.Errorf("%q ran %d times", scope, n)
			}
		}
		if len(count) != scopes {
			w.Errorf("%d of %d scopes ran", len(count), scopes)
		}
		s.noFailure()
	})
}
