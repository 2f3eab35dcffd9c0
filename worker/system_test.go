package worker

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// system is an asynq server whose tasks keep limits, over a Redis of its own.
type system struct {
	t         *testing.T
	server    *redistest.Server // nil in fake time
	rdb       *redis.Client
	throttle  *Middleware
	inspector *asynq.Inspector
	client    *asynq.Client
	queue     *queue.Client
	seen      *seen

	mu    sync.Mutex
	runs  map[string]int
	ended chan string
}

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

func newSystem(t *testing.T, rules []policy.Rule, cfg MiddlewareConfig) *system {
	t.Helper()
	return newSystemUnder(t, policyOfP(t, rules), cfg)
}

// newSystemUnder is newSystem under a policy.
func newSystemUnder(t *testing.T, policy *policy.Policy, cfg MiddlewareConfig) *system {
	t.Helper()
	server := redistest.NewServer(t)
	s := newSystemOn(t, server.Client(t), policy, cfg)
	s.server = server
	return s
}

// inFakeTime has a test's system, over a miniredis, where a busy machine is no slower than another: for what is counted while time passes.
func inFakeTime(t *testing.T, rules []policy.Rule, test func(*system)) {
	t.Helper()
	inFakeTimeUnder(t, policyOfP(t, rules), MiddlewareConfig{}, test)
}

// inFakeTimeUnder is inFakeTime under a policy.
func inFakeTimeUnder(t *testing.T, policy *policy.Policy, cfg MiddlewareConfig, test func(*system)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait) // what was announced at the end has been
		test(newSystemOn(t, rdb, policy, cfg))
	})
}

func newSystemOn(t *testing.T, rdb *redis.Client, policy *policy.Policy, cfg MiddlewareConfig) *system {
	t.Helper()
	s := &system{t: t, rdb: rdb, seen: &seen{}, runs: map[string]int{}, ended: make(chan string, 10_000)}
	limiter, err := throttle.New(s.rdb, policy, throttle.Config{})
	must(t, err)
	cfg.Redis, cfg.Limiter, cfg.Observer = s.rdb, limiter, s.seen
	s.throttle, err = NewMiddleware(cfg)
	must(t, err)
	s.inspector = asynq.NewInspectorFromRedisClient(s.rdb)
	s.client = asynq.NewClientFromRedisClient(s.rdb)
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{})
	return s
}

// serve starts a server; it is shut down when the test ends.
func (s *system) serve(cfg asynq.Config, handler asynq.HandlerFunc) *Server {
	s.t.Helper()
	return s.start(cfg, s.counting(handler))
}

func (s *system) start(cfg asynq.Config, handler asynq.Handler) *Server {
	s.t.Helper()
	cfg.Concurrency, cfg.LogLevel = cmp.Or(cfg.Concurrency, 4), cmp.Or(cfg.LogLevel, asynq.FatalLevel)
	if s.server != nil { // in fake time waiting takes no time, and each poll does
		cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval = 20*time.Millisecond, 100*time.Millisecond
	}
	server := s.throttle.NewServer(cfg)
	must(s.t, server.Start(handler))
	s.t.Cleanup(server.Shutdown)
	return server
}

func (s *system) counting(handler asynq.HandlerFunc) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		s.mu.Lock()
		s.runs[id]++
		s.mu.Unlock()
		defer func() { s.ended <- id }()
		if handler == nil {
			return nil
		}
		return handler(ctx, task)
	}
}

// haveEnded waits until n more runs have.
func (s *system) haveEnded(n int) {
	s.t.Helper()
	for i := range n {
		select {
		case <-s.ended:
		case <-time.After(bound):
			s.t.Fatalf("%d of %d runs have ended", i, n)
		}
	}
}

func (s *system) ran(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

func (s *system) add(task queue.Task) {
	s.t.Helper()
	if task.Type == "" {
		task.Type = "work"
	}
	if task.Scope == "" {
		task.Scope = "p/a"
	}
	_, err := s.queue.Enqueue(s.t.Context(), task)
	must(s.t, err)
}

// addForeign enqueues with asynq alone, headers included.
func (s *system) addForeign(id string, opts ...asynq.Option) {
	s.t.Helper()
	task := asynq.NewTaskWithHeaders("work", []byte(`{"id":"`+id+`"}`), map[string]string{queue.HeaderScope: "p/a", "x-own": id})
	_, err := s.client.EnqueueContext(s.t.Context(), task, append(opts, asynq.TaskID(id))...)
	must(s.t, err)
}

func (s *system) until(what string, cond func() bool) {
	s.t.Helper()
	redistest.WaitFor(s.t, what, bound, cond)
}

// info returns what asynq knows of a task, nil when nothing.
func (s *system) info(id string) *asynq.TaskInfo {
	info, err := s.inspector.GetTaskInfo("default", id)
	if err != nil {
		return nil
	}
	return info
}

// is waits until a task has a state, and returns what asynq knows of it then.
func (s *system) is(id string, state asynq.TaskState) (info *asynq.TaskInfo) {
	s.t.Helper()
	s.until(fmt.Sprintf("%s is %s", id, state), func() bool {
		info = s.info(id)
		return info != nil && info.State == state
	})
	return info
}

func (s *system) counters() (processed, failed int) {
	s.t.Helper()
	info, err := s.inspector.GetQueueInfo("default")
	must(s.t, err)
	return info.ProcessedTotal, info.FailedTotal
}

// seen is an Observer that remembers.
type seen struct {
	NoObserver
	mu          sync.Mutex
	pickups     int
	began       int
	latest      time.Duration // by which a run began after its start
	rescheduled int
	holding     int
	mostHolding int
	leases      int
	faults      []string
	outcomes    []string
	became      []string // of those that waited too long
	refused     []string // why the limits refused tasks
	onHold      func()   // called when a task begins to hold
	onLease     func()   // called when a run takes its places
}

func (o *seen) with(f func()) { o.mu.Lock(); defer o.mu.Unlock(); f() }

func (o *seen) PickedUp(string) { o.with(func() { o.pickups++ }) }
func (o *seen) MaxWaitExceeded(_, became string, _ time.Duration) {
	o.with(func() { o.became = append(o.became, became) })
}
func (o *seen) Refused(_, why string, _ time.Duration) {
	o.with(func() { o.refused = append(o.refused, why) })
}
func (o *seen) Began(late time.Duration) {
	o.with(func() { o.began++; o.latest = max(o.latest, late) })
}
func (o *seen) Rescheduled(string, time.Duration) { o.with(func() { o.rescheduled++ }) }
func (o *seen) LeaseHeld(_ string, delta int) {
	o.with(func() { o.leases += delta })
	if delta > 0 && o.onLease != nil {
		o.onLease()
	}
}
func (o *seen) Failed(kind string) { o.with(func() { o.faults = append(o.faults, kind) }) }
func (o *seen) Holding(delta int) {
	o.with(func() { o.holding += delta; o.mostHolding = max(o.mostHolding, o.holding) })
	if delta > 0 && o.onHold != nil {
		o.onHold()
	}
}
func (o *seen) Ran(_ context.Context, _, outcome string, _ time.Duration) {
	o.with(func() { o.outcomes = append(o.outcomes, outcome) })
}

func (o *seen) get(f func(*seen) int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return f(o)
}

func perSecond(limit int64) []policy.Rule {
	return []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}}
}

func perHour(limit int64) []policy.Rule {
	return []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour}}
}

// "Being limited burns no attempt, counts as no failure, calls no ErrorHandler and never archives a task, whatever its max retry."
func TestLimitedIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(5), MiddlewareConfig{Hold: -1})
	var handled []error
	for i := range 20 {
		id := string(rune('a' + i))
		if i%2 == 0 {
			s.add(queue.Task{ID: id, MaxRetry: queue.Retries(0)})
		} else {
			s.addForeign(id, asynq.MaxRetry(1))
		}
	}
	s.serve(asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
		s.mu.Lock()
		handled = append(handled, err)
		s.mu.Unlock()
	})}, nil)
	s.haveEnded(20)
	s.until("the last task is done", func() bool { n, _ := s.counters(); return n == 20 })
	if _, failed := s.counters(); failed != 0 || len(handled) != 0 {
		t.Errorf("asynq counts %d failures and told of %v", failed, handled)
	}
	if n := s.seen.get(func(o *seen) int { return o.rescheduled }); n < 10 {
		t.Errorf("only %d reschedules: the test did not limit", n)
	}
}

// "in bounded number, so that limited tasks never take all slots"
func TestHoldersAreBounded(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: time.Second}}, MiddlewareConfig{MaxHolds: 2})
	const tasks = 12
	for i := range tasks {
		s.add(queue.Task{ID: "limited" + string(rune('a'+i))})
	}
	s.serve(asynq.Config{Concurrency: 6}, nil)
	s.haveEnded(tasks)
	most, held := s.seen.get(func(o *seen) int { return o.mostHolding }), s.seen.get(func(o *seen) int { return o.rescheduled })
	// Those that were taken wait at the pacer, and in a handler for their last moment, one at a time.
	if most < 1 || most > 2+1 || held == 0 {
		t.Errorf("%d held at once, want 1 to 3; %d rescheduled", most, held)
	}
}

// "A task whose cost or headers can never pass, or that next has no
// handler for, fails for good with that reason and spends nothing", where Config says so.
func TestNeverPasses(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(3), MiddlewareConfig{
		FailUnknownTypes: true, failRefused: func(context.Context, throttle.Request, error) bool { return true },
	})
	s.add(queue.Task{ID: "cost", Cost: 4})
	s.add(queue.Task{ID: "type", Type: "unknown"})
	s.client.Enqueue(asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: "p", queue.HeaderCost: "x"}), asynq.TaskID("header")) //nolint:errcheck // seen below
	mux := asynq.NewServeMux()
	mux.HandleFunc("work", func(context.Context, *asynq.Task) error { return nil })
	s.start(asynq.Config{}, mux)
	for id, want := range map[string]string{
		"cost": "4", "type": `no handler is registered for tasks of type "unknown"`, "header": queue.HeaderCost,
	} {
		if text := s.archived(id); !strings.Contains(text, want) {
			t.Errorf("%s failed with %q, want %q in it", id, text, want)
		}
	}
	d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
	if err != nil || d.Rules[0].Remaining != 3 {
		t.Errorf("%+v, %v: something was spent", d, err)
	}
}

// "No unit stays with a run that ended": places are freed by success, failure and panic. The mark of a last attempt is gone too
// when asynq has noted how it ended, whatever that was.
func TestPlacesAreFreed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Lease: time.Hour}}, MiddlewareConfig{})
	for _, id := range []string{"ok", "fails", "panics", "after"} {
		s.add(queue.Task{ID: id, MaxRetry: queue.Retries(0)})
	}
	s.add(queue.Task{ID: "is kept", MaxRetry: queue.Retries(0), Remember: time.Hour})
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		switch id, _ := asynq.GetTaskID(ctx); id {
		case "fails":
			return context.Canceled
		case "panics":
			panic("boom")
		}
		return nil
	})
	s.finish(5)
	s.until("no place is held", func() bool { return s.seen.get(func(o *seen) int { return o.leases }) == 0 })
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// "On an idle queue that costs about 10 Redis commands a second, and 18 while tasks wait for later": asynq's own and those inside of
// scripts included, which are to be 12 at most, and 21.
func TestIdleCommands(t *testing.T) {
	t.Parallel()
	const seconds, once = 4, 50 // once: commands that are not sent each second, as a whole look at who waits
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	server := s.throttle.NewServer(asynq.Config{LogLevel: asynq.FatalLevel})
	must(t, server.Start(s.counting(nil)))
	t.Cleanup(server.Shutdown)
	idle := func(what string, most int) {
		<-time.After(time.Second) // what there was to do is done
		began := time.Now()
		got := redistest.Commands(t, s.rdb, func() { <-time.After(seconds * time.Second) })
		took := time.Since(began) // longer on a busy machine
		if n := redistest.Total(got); float64(n) > float64(most)*took.Seconds()+once || n == 0 {
			t.Errorf("%s: %d commands in %s: %v", what, n, took, got)
		}
	}
	idle("nobody waits", 12)
	s.add(queue.Task{ID: "starts"})
	<-s.ended // each runs beside the other, and either could be decided on first
	s.add(queue.Task{ID: "waits"})
	s.is("waits", asynq.TaskStateRetry)
	idle("one waits for an hour", 12+5)
}
