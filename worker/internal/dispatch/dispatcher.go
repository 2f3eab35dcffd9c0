// Package dispatch gives waiting tasks their turns. A [Dispatcher] asks the
// limiter whose turn it is, at the right moment and for as many tasks as the process has room for, and
// brings them to a server. It plans backlogs where they stand, removes waiters whose tasks are gone,
// and detects when its own loops are stuck.
//
// The package knows nothing about handlers. Only package worker uses it.
package dispatch

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// Config configures a Dispatcher. All fields but Expires are required.
type Config struct {
	// Redis is the Redis of asynq's tasks, and Limiter what they wait for.
	Redis   redis.UniversalClient
	Limiter *throttle.Limiter

	// Inspector and Mover read and move asynq's tasks, Queues knows which queues stand still, and
	// Servers are those of this process.
	Inspector *asynq.Inspector
	Mover     *asynqx.Mover
	Queues    *asynqx.QueueStates
	Servers   *asynqx.Servers

	Observer Observer
	Log      *slog.Logger
	// Serving ends when nothing is dispatched any more. Moves are the tasks on their way; the process waits
	// for them then.
	Serving context.Context //nolint:containedctx // of the loops
	Moves   *sync.WaitGroup

	// Hold is how near a start must be for its task to wait in a handler, and MaxHolds how many tasks may;
	// 0 stands for three quarters of the slots.
	Hold     time.Duration
	MaxHolds int

	// Tenant returns the tenant to which a scope belongs.
	Tenant func(scope string) string
	// Retired reports whether this process has started servers and all of them have stopped: a
	// dispatched task would only wait until another process polls.
	Retired func() bool
	// PolicyChanged is called when the limiter has another policy.
	PolicyChanged func()
	// Read reads a pending task of a queue. waits is false for a task that must be picked up for a
	// decision.
	Read func(queue string, info *asynq.TaskInfo) (task Task, waits bool)
	// Expires returns when a wait of at most maxWait that began at due, by Redis's clock, ends by this
	// process's clock. Nil means that tasks wait for as long as it takes.
	Expires func(scope string, due time.Time, maxWait time.Duration) time.Time
}

// Observer observes a Dispatcher; see worker.Observer. Its methods must not block.
type Observer interface {
	Rescheduled(queue string, wait time.Duration)
	DispatcherPolled(provider, label string, again bool)
	DispatchLead(lead time.Duration)
	Failed(kind string)
}

// Task is a pending task that may wait where it stands.
type Task struct {
	ID     string
	Waiter throttle.Waiter
	// Own is true if package queue wrote the task. Lock is the unique lock that it may hold.
	Own  bool
	Lock asynqx.Lock
	// MaxWait is the task's own, 0 for none. Due is when its wait began; zero if only a pick-up can
	// tell.
	MaxWait time.Duration
	Due     time.Time
}

// Dispatcher brings waiting tasks when their turns are near, for every provider that tasks wait for.
// It has the limiter grant starts to those whose turn it is, and hands the tasks to a server of this
// process, or puts them into pending. Every process that runs tasks has one. Each turn is given once,
// to the first that asks; there is no leader. It is safe for concurrent use.
//
// It does not poll for what it knows: it polls a provider when the limiter said to, and when a task of
// this process joins a queue or frees what others wait for. Twice a second it asks which providers
// other processes have announced, because their tasks have begun to wait or something was freed. See
// quiet.go for how often it polls the other providers.
type Dispatcher struct {
	cfg      Config
	dispatch Func // grants those whose turn it is
	watchdog *watchdog
	reach    *reach
	planner  *planner
	claims   *claims
	nets     nets
	weights  weights
	load     load
	repeats  ratelog.Repeats // of lines of the log

	begin   sync.Once
	mu      sync.Mutex
	watches map[string]*watch
	seen    map[string]announcement  // announcements that were handled
	learned map[string]chan struct{} // closed when the distance of a provider's Redis is known
	lulls   map[string]*backoff      // after polls that found no waiter
	taken   int                      // places that calls under way may fill

	sample  int64 // how many tasks had ended when they were last counted
	recent  int64 // how many ended in the time before
	sampled time.Time
	soon    *time.Timer // polls every provider when it fires
	starved atomic.Bool // a watch had no place to release a task for
	burst   bool        // its tasks' starts had come
}

// Func is throttle.Waitlist.Dispatch.
type Func func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error)

// New returns a Dispatcher. It does no I/O.
func New(cfg Config) *Dispatcher {
	d := &Dispatcher{
		cfg: cfg, dispatch: cfg.Limiter.Waitlist().Dispatch, reach: newReach(),
		watches: map[string]*watch{}, seen: map[string]announcement{}, learned: map[string]chan struct{}{}, lulls: map[string]*backoff{},
	}
	d.watchdog, d.planner, d.claims = newWatchdog(d), newPlanner(d), newClaims(d)
	return d
}

// AddServer adds a server: how many tasks it runs at a time, of which the first server's number
// counts, the weights of its queues, and how often it polls for tasks. Call it before the server
// starts.
func (d *Dispatcher) AddServer(concurrency int, weights queue.Weights, check time.Duration) {
	d.Size(concurrency)
	d.weights.serves(weights)
	d.load.check = check
}

// Rank returns the priority, the lane and the stride of a task of a queue, given its own priority:
// among tasks that wait for their limits, queues have the weights that they have in asynq.
func (d *Dispatcher) Rank(name string, own int) (priority int, lane string, stride int) {
	return d.weights.rank(name, own)
}

// CheckWatchdog logs a line if dispatching has stopped. Handlers of tasks call it in passing; it costs
// almost nothing more often than once a second.
func (d *Dispatcher) CheckWatchdog() { d.watchdog.check() }

// Claim reports to Redis that a task has taken its granted start. wait returns when that was reported.
func (d *Dispatcher) Claim(task throttle.WaiterRef) (wait func()) { return d.claims.tell(task) }

// CameByItself records that asynq has brought back a waiting task of a scope. If this process grants
// the starts of that scope, the fallback delays of other tasks become longer.
func (d *Dispatcher) CameByItself(scope string) {
	if d.dispatches(Provider(scope)) {
		d.nets.came()
	}
}

// FallbackDelay returns after how long asynq brings back a task by itself that is expected to start
// after expected, if it is not granted.
func (d *Dispatcher) FallbackDelay(expected time.Duration) time.Duration { return d.nets.of(expected) }

// PutBack records that a task of a queue was picked up and put back. After several, the queue is
// planned. It does not block.
func (d *Dispatcher) PutBack(name, kind string) { d.planner.putBack(name, kind) }

// Forwarded records that asynq has moved n due tasks of a queue into pending. It blocks while they are
// planned, for a bounded time.
func (d *Dispatcher) Forwarded(name string, n int) { d.planner.forwarded(name, n) }

// Wait returns when the tasks claimed for planning are settled, or after a few seconds. Call it when
// Config.Serving has ended.
func (d *Dispatcher) Wait() { d.planner.wait() }

// Intercept passes each call of Dispatch through wrap, for tests. Call it before Start.
func (d *Dispatcher) Intercept(wrap func(next Func) Func) {
	d.dispatch = wrap(d.dispatch)
}

// LockAll holds the locks that are taken when a slot is freed, and makes one be wanted, until unlock
// is called, for tests of what must not wait for them.
func (d *Dispatcher) LockAll() (unlock func()) {
	d.starved.Store(true)
	d.mu.Lock()
	d.claims.mu.Lock()
	return func() {
		d.mu.Unlock()
		d.claims.mu.Unlock()
	}
}

func (d *Dispatcher) stopped() bool { return d.cfg.Serving.Err() != nil }

// Provider returns the first name of a scope.
func Provider(scope string) string {
	name, _, _ := strings.Cut(scope, "/")
	return name
}
