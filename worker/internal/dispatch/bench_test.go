package dispatch

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// bench is a Dispatcher without handlers. Scopes of p and of all other providers have one start in ten minutes.
type bench struct {
	*testing.T
	server    *redistest.Server // nil in fake time
	rdb       redis.UniversalClient
	cfg       Config
	d         *Dispatcher
	stop      context.CancelFunc
	client    *asynq.Client
	inspector *asynq.Inspector
	noted     *noted
}

// noted counts what a Dispatcher tells its observer.
type noted struct {
	mu          sync.Mutex
	rescheduled int
	faults      []string
}

func (n *noted) Rescheduled(string, time.Duration) { n.mu.Lock(); defer n.mu.Unlock(); n.rescheduled++ }
func (n *noted) Failed(kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = append(n.faults, kind)
}

func (*noted) DispatcherPolled(string, string, bool) {}
func (*noted) DispatchLead(time.Duration)            {}

// newBench returns a bench in fake time.
func newBench(t *testing.T) *bench {
	t.Helper()
	_, rdb := redistest.Miniredis(t)
	return newBenchOn(t, rdb)
}

// newServedBench returns a bench over a real Redis.
func newServedBench(t *testing.T) *bench {
	t.Helper()
	server := redistest.NewServer(t)
	b := newBenchOn(t, server.Client(t))
	b.server = server
	return b
}

// newBenchOn returns a bench over a Redis.
func newBenchOn(t *testing.T, rdb redis.UniversalClient) *bench {
	t.Helper()
	b := &bench{T: t, rdb: rdb, noted: &noted{}, client: asynq.NewClientFromRedisClient(rdb)}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	ctx, stop := context.WithCancel(context.Background())
	b.stop, b.inspector = stop, inspector
	t.Cleanup(stop)
	log := slog.New(slog.DiscardHandler)
	b.cfg = Config{
		Redis: rdb, Limiter: b.limiterOn(rdb), Inspector: inspector,
		Mover: asynqx.NewMover(rdb, b.noted.Failed), Queues: asynqx.NewQueueStates(rdb, inspector, b.noted.Failed), Servers: &asynqx.Servers{},
		Observer: b.noted, Log: log, Serving: ctx, Moves: &sync.WaitGroup{}, Hold: 250 * time.Millisecond,
		Tenant: func(string) string { return "" }, Retired: func() bool { return false }, PolicyChanged: func() {},
		Read: readHeaders,
	}
	b.build()
	return b
}

// limiterOn returns a limiter over a client of the bench's Redis.
func (b *bench) limiterOn(rdb redis.UniversalClient) *throttle.Limiter {
	b.Helper()
	one := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 10 * time.Minute}}
	policy, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"p": {Rules: one}, "*": {Rules: one}})
	must(b, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(b, err)
	return limiter
}

// build makes the Dispatcher anew, after a change of cfg.
func (b *bench) build() { b.d = New(b.cfg) }

// grants has the Dispatcher ask f, and not the limiter, whose turn it is.
func (b *bench) grants(f Func) {
	b.d.Intercept(func(Func) Func { return f })
}

// serves has a server of the process serve the default queue, which never takes a task.
func (b *bench) serves() {
	b.cfg.Queues.Serve(nil)
	b.d.AddServer(4, queue.NewWeights(nil, false), 100*time.Millisecond)
}

// add enqueues a task of type work, with asynq alone.
func (b *bench) add(id, scope string) {
	b.Helper()
	task := asynq.NewTaskWithHeaders("work", []byte(id), map[string]string{queue.HeaderScope: scope})
	_, err := b.client.Enqueue(task, asynq.TaskID(id))
	must(b, err)
}

// states are asynq's of tasks of the default queue.
func (b *bench) states(ids ...string) (out []string) {
	for _, id := range ids {
		state := "gone"
		if info, err := b.inspector.GetTaskInfo("default", id); err == nil {
			state = info.State.String()
		}
		out = append(out, state)
	}
	return out
}

// readHeaders reads a task that says in its headers what it spends.
func readHeaders(name string, info *asynq.TaskInfo) (Task, bool) {
	spec, found, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	if err != nil || !found {
		return Task{}, false
	}
	return Task{
		ID: info.ID, Waiter: throttle.Waiter{Scope: spec.Scope, Cost: spec.Cost, ID: queue.Ticket(name, info.ID)},
		Lock: asynqx.NewLock(name, info.ID, info.Type, info.Payload),
	}, true
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
