// Package dispatch gives waiting tasks their turns. A [Dispatcher] asks whose turn it is, for as many tasks as this process has
// slots, and brings each to a server of this process in time for its start. docs/turns.md describes all of it.
//
// The package knows nothing about handlers. Only package worker uses it.
package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/ratelog"
	"github.com/headway-go/headway/worker/internal/watchdog"
)

// Config configures a Dispatcher. All fields are required.
type Config struct {
	// Redis is the Redis of asynq's tasks, and Limiter what they wait for.
	Redis   redis.UniversalClient
	Limiter *throttle.Limiter

	// Mover moves asynq's tasks, Queues knows which queues stand still, and Servers are those of this process.
	Mover   *asynqx.Mover
	Queues  *asynqx.QueueStates
	Servers *asynqx.Servers

	Observer Observer
	Log      *slog.Logger
	// Serving ends when nothing is dispatched any more. Moves are the tasks on their way; the process waits for them then.
	Serving context.Context //nolint:containedctx // of the loops
	Moves   *sync.WaitGroup

	// Hold is how near a start must be for its task to wait in a handler, and MaxHolds how many tasks may; 0 stands for three
	// quarters of the slots.
	Hold     time.Duration
	MaxHolds int

	// Tenant returns the tenant to which a scope belongs.
	Tenant func(scope string) string
	// Retired reports whether this process has started servers and all of them have stopped.
	Retired func() bool
	// PolicyChanged is called when the limiter has another policy.
	PolicyChanged func()
	// Alongside runs alongside the loops until Serving ends, and again if it panics.
	Alongside func()
}

// Observer observes a Dispatcher; see worker.Observer. Its methods must not block.
type Observer interface {
	DispatcherPolled(provider, label string, next time.Duration)
	DispatchLead(lead time.Duration)
	Failed(kind string)
}

// Func is waitlist.List.Dispatch.
type Func func(context.Context, waitlist.Request) (waitlist.Dispatched, error)

// Dispatcher has one loop for each provider that tasks wait for. A loop calls dispatch when a turn comes, or sooner for a reason:
// a task of this process has joined, something came free, a slot is free, or the limits have changed. Every process that runs
// tasks has a Dispatcher, and each turn is given once, to the first that asks. It is safe for concurrent use.
type Dispatcher struct {
	cfg      Config
	list     *waitlist.List
	dispatch Func
	reach    *reach
	watchdog *watchdog.Watchdog
	reports  *reports
	slots    slots
	repeats  ratelog.Repeats // of lines of the log

	begin    sync.Once
	mu       sync.Mutex
	loops    map[string]*loop
	out      map[waitlist.Ref]sent    // granted here, and on their way
	learned  map[string]chan struct{} // closed when the distance of a provider's Redis is known
	queues   map[string]int           // of the servers of this process, with their weights
	weighted bool                     // some server takes tasks by weight, and not strictly in the order of its queues
}

// New returns a Dispatcher. It does no I/O.
func New(cfg Config) *Dispatcher {
	d := &Dispatcher{
		cfg: cfg, list: cfg.Limiter.Waitlist(), dispatch: cfg.Limiter.Waitlist().Dispatch,
		reach: &reach{hand: delayMeter{first: gatedLead / 2}, pickup: delayMeter{first: gatedLead / 2}},
		loops: map[string]*loop{}, out: map[waitlist.Ref]sent{}, learned: map[string]chan struct{}{}, queues: map[string]int{},
	}
	d.watchdog = &watchdog.Watchdog{Observe: d.polled, Stopped: d.stopped, Log: cfg.Log}
	d.reports = &reports{d: d, next: map[string]*batch{}}
	return d
}

// Intercept passes each call of Dispatch through wrap, for tests. Call it before Start.
func (d *Dispatcher) Intercept(wrap func(next Func) Func) { d.dispatch = wrap(d.dispatch) }

// AddServer adds a server: how many tasks it runs at a time, of which the first server's number counts, and its queues with
// their weights. Call it before the server starts.
func (d *Dispatcher) AddServer(concurrency int, queues map[string]int, strict bool) {
	d.Size(concurrency)
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, weight := range queues {
		if weight > 0 {
			d.queues[name] = max(d.queues[name], weight)
		}
	}
	d.weighted = d.weighted || !strict
}

// serves returns the queues whose tasks this process can start now, with their weights; of strict ones the first first. d.mu is held.
func (d *Dispatcher) serves() (serves []wire.Weighted) {
	names := slices.SortedFunc(maps.Keys(d.queues), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.queues[b], d.queues[a]), strings.Compare(a, b))
	})
	for _, name := range names {
		if d.cfg.Queues.Stands(name) {
			continue
		}
		w := wire.Weighted{Queue: name}
		if d.weighted {
			w.Weight = float64(d.queues[name])
		}
		serves = append(serves, w)
	}
	return serves
}

// Start starts the loops, once. They run until Config.Serving ends.
func (d *Dispatcher) Start() {
	d.begin.Do(func() {
		context.AfterFunc(d.cfg.Serving, d.list.OnWake(d.Wake))
		go d.guarded("follow the policy", d.followPolicy)
		go d.guarded("look around", d.lookAround)
		go d.guarded("sweep", d.cfg.Alongside)
	})
}

// Dispatched returns the providers that this process dispatches now, without those whose calls hang or fail.
func (d *Dispatcher) Dispatched() []string {
	d.mu.Lock()
	providers := slices.Collect(maps.Keys(d.loops))
	d.mu.Unlock()
	return slices.DeleteFunc(providers, func(provider string) bool { return !d.watchdog.Works(provider) })
}

// Wake calls dispatch for a provider soon: its tasks may have turns. It does not block.
func (d *Dispatcher) Wake(provider string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wake(provider)
}

// wake is Wake for a caller that holds d.mu.
func (d *Dispatcher) wake(provider string) *loop {
	l := d.loops[provider]
	if l == nil {
		l = &loop{d: d, provider: provider, wakes: make(chan struct{}, 1), called: time.Now()}
		d.loops[provider] = l
		if !d.stopped() {
			go d.guarded("dispatch", l.run)
		}
	}
	l.kick()
	return l
}

// followPolicy calls dispatch for all providers each time that the limiter has another policy.
func (d *Dispatcher) followPolicy() {
	for {
		changed := d.cfg.Limiter.PolicyChanged()
		select {
		case <-d.cfg.Serving.Done():
			return
		case <-changed:
		}
		d.cfg.PolicyChanged()
		d.wakeAll(time.Time{})
	}
}

const (
	// lookEach is how often a process asks which queues are paused, and askEach how often it asks for the providers that others
	// have announced, all of them at first and then those of the time since. A message of Redis Pub/Sub is usually quicker.
	lookEach, askEach = time.Second, 10 * time.Second
	// skewed is the most that clocks of processes differ.
	skewed = 10 * time.Second
	// restartPause is how long after a panic a loop runs again.
	restartPause = 500 * time.Millisecond
)

// lookAround asks which queues of this process are paused, and which providers others have announced.
func (d *Dispatcher) lookAround() {
	var asked, since time.Time
	changes := 0
	for {
		if now := time.Now(); now.Sub(asked) >= askEach {
			if d.wakeAll(since) {
				since = now.Add(-skewed - askEach)
			}
			asked = now
		}
		d.mu.Lock()
		busy, names := len(d.loops) > 0, slices.Collect(maps.Keys(d.queues))
		d.offer() // a task that has not come no longer takes room
		d.mu.Unlock()
		if busy {
			d.cfg.Queues.Ask(d.cfg.Serving, lookEach/2, names...)
		}
		if n := d.cfg.Queues.Changes(); n != changes {
			changes = n
			d.kickAll()
		}
		if !asynqx.Sleep(d.cfg.Serving, lookEach) {
			return
		}
	}
}

// wakeAll wakes the loops there are, and those of all providers that were announced since.
func (d *Dispatcher) wakeAll(since time.Time) (ok bool) {
	active, err := d.list.ActiveProviders(d.cfg.Serving, since)
	if err != nil && !d.stopped() {
		d.cfg.Observer.Failed("wake")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for provider := range active {
		if since.IsZero() || d.loops[provider] == nil {
			d.wake(provider)
		}
	}
	return err == nil
}

// kickAll has all loops call dispatch.
func (d *Dispatcher) kickAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.loops {
		l.kick()
	}
}

// guarded runs a loop, and runs it again if it panics.
func (d *Dispatcher) guarded(what string, loop func()) {
	for again := true; again; {
		again = false
		func() {
			defer func() {
				if x := recover(); x != nil {
					d.cfg.Observer.Failed("wake")
					d.cfg.Log.Error("dispatcher panicked; restarting", "part", what, "panic", fmt.Sprint(x), "stack", string(debug.Stack()))
					again = asynqx.Sleep(d.cfg.Serving, restartPause)
				}
			}()
			loop()
		}()
	}
}

// CheckWatchdog logs a line if dispatching has stopped. Handlers of tasks call it in passing; it costs almost nothing more often
// than once a second.
func (d *Dispatcher) CheckWatchdog() { d.watchdog.Check() }

// polled passes a call of a loop to the observer. All providers that the limits do not name share a label.
func (d *Dispatcher) polled(provider string, next time.Duration) {
	label := "*"
	if d.cfg.Limiter.Policy().Names(provider) {
		label = provider
	}
	d.cfg.Observer.DispatcherPolled(provider, label, next)
}

func (d *Dispatcher) stopped() bool { return d.cfg.Serving.Err() != nil }
