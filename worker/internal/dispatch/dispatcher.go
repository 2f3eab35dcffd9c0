// Package dispatch keeps the turns of tasks that wait for their limits: a [Dispatcher] asks the limiter whose turn it is, at
// the right moment and for as many tasks as the process has room for, and brings them to a server. It plans backlogs where they
// stand, sweeps what has gone, and notices when it does its work no more.
//
// It knows nothing of handlers. Package worker is its one user.
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

// Config is what a Dispatcher needs. All but Expires is required.
type Config struct {
	// Redis is where asynq keeps its tasks, Limiter what they wait for.
	Redis   redis.UniversalClient
	Limiter *throttle.Limiter

	// Inspector and Mover read and move asynq's tasks, Queues knows which queues stand still, and Servers are those of this
	// process.
	Inspector *asynq.Inspector
	Mover     *asynqx.Mover
	Queues    *asynqx.QueueStates
	Servers   *asynqx.Servers

	Observer Observer
	Log      *slog.Logger
	// Serving is over when nothing is dispatched any more. Moves are tasks on their way, for which the process waits then.
	Serving context.Context //nolint:containedctx // of the loops
	Moves   *sync.WaitGroup

	// Hold is how near a start must be for its task to wait in a handler, and MaxHolds how many may; 0 is three quarters of the
	// slots.
	Hold     time.Duration
	MaxHolds int

	// Tenant says whose tasks those of a scope are.
	Tenant func(scope string) string
	// Retired says whether servers were started here and all of them were stopped: a dispatched task would only wait for
	// another process to look.
	Retired func() bool
	// PolicyChanged is called when the limiter has another policy.
	PolicyChanged func()
	// Read reads a pending task of a queue. waits is false for one that has to be picked up to be judged.
	Read func(queue string, info *asynq.TaskInfo) (task Task, waits bool)
	// Expires returns when a wait of at most maxWait ends that began at due, by Redis's clock, by this process's. Nil where
	// tasks wait for as long as it takes.
	Expires func(scope string, due time.Time, maxWait time.Duration) time.Time
}

// Observer is told what a Dispatcher does, as worker.Observer says. Its methods must not block.
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
	// Own says that package queue made it, Lock which unique lock it may hold.
	Own  bool
	Lock asynqx.Lock
	// MaxWait is the task's own, 0 where it has none. Due is when its wait began; zero: that is known when it is picked up.
	MaxWait time.Duration
	Due     time.Time
}

// Dispatcher brings waiting tasks when their turns are near, for every provider that
// tasks wait for: it has the limiter grant those whose turn it is, and hands them to a server of this process, or puts them
// into pending. Every process that runs tasks has one, and each turn is given once,
// whichever asks first; there is no leader. It is safe for concurrent use.
//
// It polls nothing that it knows: a provider is looked at when the limiter said to, and
// when a task of this process joins a line or frees what others wait for. Twice a second it asks which providers
// other processes have announced, since tasks of theirs have begun to wait or something has come free; see quiet.go
// for how often the others are looked at.
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
	seen    map[string]announcement  // those that have been looked into
	learned map[string]chan struct{} // closed when it is known how far away a provider's Redis is
	lulls   map[string]*backoff      // after looks that found that nobody waits
	taken   int                      // places that calls under way may fill

	sample  int64 // how many tasks had ended when they were last counted
	recent  int64 // how many ended in the time before
	sampled time.Time
	soon    *time.Timer // when it is over they will be looked at
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

// AddServer notes a server: how many tasks it runs at a time, of which the first server's counts, what its queues weigh, and
// how often it looks for tasks. It is called before the server starts.
func (d *Dispatcher) AddServer(concurrency int, weights queue.Weights, check time.Duration) {
	d.Size(concurrency)
	d.weights.serves(weights)
	d.load.check = check
}

// Rank returns the priority, the lane and the stride of a task of a queue, by the priority of its own: among tasks that wait
// for their limits queues weigh what they do in asynq.
func (d *Dispatcher) Rank(name string, own int) (priority int, lane string, stride int) {
	return d.weights.rank(name, own)
}

// CheckWatchdog logs a line where dispatching has stopped. It is for those who handle tasks, in passing, and costs next to
// nothing more often than once a second.
func (d *Dispatcher) CheckWatchdog() { d.watchdog.check() }

// Claim has Redis told that a task has taken the start that it was granted. wait returns when it was.
func (d *Dispatcher) Claim(task throttle.WaiterRef) (wait func()) { return d.claims.tell(task) }

// CameByItself notes that asynq has brought a task of a scope which stood in line: the nets of others become looser, if this
// process grants their starts.
func (d *Dispatcher) CameByItself(scope string) {
	if d.dispatches(Provider(scope)) {
		d.nets.came()
	}
}

// FallbackDelay is in how long asynq is to bring a task by itself that is expected to start in so long, should nobody grant it.
func (d *Dispatcher) FallbackDelay(expected time.Duration) time.Duration { return d.nets.of(expected) }

// PutBack notes that a task of a queue was picked up and put back. Where there are several the queue is planned. It does not
// block.
func (d *Dispatcher) PutBack(name, kind string) { d.planner.putBack(name, kind) }

// Forwarded notes that asynq has moved n tasks of a queue into pending, since they were due. It blocks for a while at most,
// while they are planned.
func (d *Dispatcher) Forwarded(name string, n int) { d.planner.forwarded(name, n) }

// Wait returns when what was claimed for planning has been seen to, or after a few seconds. It is called when Config.Serving is over.
func (d *Dispatcher) Wait() { d.planner.wait() }

// Intercept has each call of Dispatch go through wrap, for tests. It is called before Start.
func (d *Dispatcher) Intercept(wrap func(next Func) Func) {
	d.dispatch = wrap(d.dispatch)
}

// LockAll holds the locks that are taken when a slot comes free, and has one wanted, until unlock is called, for tests of what
// must not wait for them.
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

// Provider is the first name of a scope.
func Provider(scope string) string {
	name, _, _ := strings.Cut(scope, "/")
	return name
}
