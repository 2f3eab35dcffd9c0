package dispatch

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// planner gives the tasks of a backlog their places while they are pending, so that each need not
// be picked up once only to be put back, and no task waits behind them all. See docs/decisions/0016.
// It is safe for concurrent use.
type planner struct {
	d *Dispatcher

	mu     sync.Mutex
	queues map[string]*backlog
	passes sync.WaitGroup
}

// backlog is what is known of one queue.
type backlog struct {
	since  time.Time       // when the count of put-backs began
	met    int             // the number of put-backs
	types  map[string]bool // of tasks that had to go back: others may have no handler here
	busy   bool            // it is being planned
	rested time.Time       // when it may be planned again
	size   int             // of the next page
	told   bool            // a failure to plan it was logged
	shut   shutting
}

// shutting is how long this process takes no tasks of a queue.
type shutting struct {
	until time.Time
	open  func() // nil: it is open
}

const (
	// planAfter is how many tasks of a queue, put back within lately, make a backlog.
	planAfter = 4
	// planRest is how long a queue is left alone after a pass, and planFault after a failed one.
	planRest, planFault = 100 * time.Millisecond, 5 * time.Second
	// mostForward is how long asynq's other due tasks wait while a queue is planned.
	mostForward = 250 * time.Millisecond
	// planLock is how long a process that died keeps others from planning.
	planLock = 2 * time.Second
	// planClaim is when asynq brings back what a process that died has claimed.
	planClaim = 5 * time.Second

	// mostShut is how long no task of the queue is taken. pageShut is how much of that must be left
	// for a page.
	mostShut, pageShut = 100 * time.Millisecond, 50 * time.Millisecond
	// shutPause is how often a process that does not plan a queue checks whether another still does.
	shutPause = 10 * time.Millisecond
	// mostProviders bounds the providers of a page: each costs round trips.
	mostProviders = 8

	// A page is small at first, and at most so large that no script holds the server up
	// for more than about a millisecond; nor are its messages to fill this process.
	firstPage, mostPage = 16, 128
	pageBytes           = 1 << 20
	maxTypes            = 1000
)

func newPlanner(d *Dispatcher) *planner {
	return &planner{d: d, queues: map[string]*backlog{}}
}

// putBack records that a task of a queue was picked up and put back, and plans the queue after
// several. It does not block.
func (p *planner) putBack(name, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, now := p.queues[name], time.Now()
	if b == nil {
		b = &backlog{types: map[string]bool{}, size: firstPage}
		p.queues[name] = b
	}
	if len(b.types) < maxTypes {
		b.types[kind] = true
	}
	if now.Sub(b.since) > lately {
		b.since, b.met = now, 0
	}
	b.met++
	if b.met < planAfter || b.busy || now.Before(b.rested) || p.d.stopped() {
		return
	}
	p.begin(name, b)
}

// begin begins a pass over a queue, and returns a channel that is closed when the pass is over. p.mu
// is held.
func (p *planner) begin(name string, b *backlog) (over <-chan struct{}) {
	b.busy = true
	done := make(chan struct{})
	p.passes.Go(func() {
		defer close(done)
		p.run(name, b)
	})
	return done
}

// forwarded records that asynq has moved several due tasks of a queue into pending, and plans the
// queue: most of them came back by themselves, and are waiters. It returns when that is done, so that
// few of them are picked up before, or after mostForward: asynq has other queues to serve.
func (p *planner) forwarded(name string, n int) {
	if n < planAfter || p.d.cfg.Queues.Stands(name) {
		return
	}
	p.mu.Lock()
	b := p.queues[name]
	if b == nil || b.busy || b.told && time.Now().Before(b.rested) || p.d.stopped() {
		p.mu.Unlock()
		return
	}
	over := p.begin(name, b)
	p.mu.Unlock()
	timer := time.NewTimer(mostForward)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// wait returns when the passes that end with Config.Serving have settled what they have claimed, or
// after a time-out.
func (p *planner) wait() {
	p.mu.Lock()
	p.mu.Unlock() //nolint:staticcheck // whoever had it has begun its pass, and nobody does any more
	ended := make(chan struct{})
	go func() { p.passes.Wait(); close(ended) }()
	timer := time.NewTimer(planClaim)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// run plans a queue, and then leaves it alone for a while.
func (p *planner) run(name string, b *backlog) {
	err := errPanicked
	defer func() {
		if x := recover(); x != nil && !b.told {
			p.d.cfg.Log.Error("backlog planner panicked", "queue", name, "panic", fmt.Sprint(x), "stack", string(debug.Stack()))
		}
		b.told = err != nil
		rest := planRest
		if err != nil && !p.d.stopped() {
			rest = planFault
			p.d.cfg.Observer.Failed("plan")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		b.busy, b.rested = false, time.Now().Add(rest)
	}()
	err = p.plan(p.d.cfg.Serving, name, b)
	if err != nil && !b.told && !p.d.stopped() {
		p.d.cfg.Log.Warn("cannot plan a backlog; each task is picked up once to join its queue", "queue", name, "error", err)
	}
}

// plan plans a queue, or leaves its tasks alone while another process does.
func (p *planner) plan(ctx context.Context, name string, b *backlog) error {
	defer p.open(b)
	if free, err := p.lock(ctx, name); err != nil {
		return err
	} else if !free {
		return p.leave(ctx, name, b)
	}
	defer p.d.cfg.Redis.Del(context.WithoutCancel(ctx), planKey(name))
	for {
		page, err := p.page(ctx, name, b)
		if b.size = page.next(b.size); err != nil || !page.more() {
			return err
		}
		p.d.cfg.Redis.PExpire(ctx, planKey(name), planLock)
	}
}

func planKey(name string) string { return "hw:plan:{" + name + "}" }

// lock keeps other processes from planning the queue. If a page takes so long that the lock is lost,
// another process only repeats the work.
func (p *planner) lock(ctx context.Context, name string) (free bool, err error) {
	err = p.d.cfg.Redis.SetArgs(ctx, planKey(name), 1, redis.SetArgs{Mode: "NX", TTL: planLock}).Err()
	if err == redis.Nil { //nolint:errorlint // as the client returns it
		return false, nil
	}
	return err == nil, err
}

// leave takes no tasks of a queue that another process plans, for a while: most would have to be put
// back.
func (p *planner) leave(ctx context.Context, name string, b *backlog) error {
	for p.shut(name, b); time.Now().Before(b.shut.until) && asynqx.Sleep(ctx, shutPause); {
		if there, err := p.d.cfg.Redis.Exists(ctx, planKey(name)).Result(); err != nil || there == 0 {
			return err
		}
	}
	return nil
}

// shut keeps this process from taking tasks of a queue, from now on or since the page before: most would
// have to be put back. It ends by itself, and a Redis that hangs does not stop the other tasks.
func (p *planner) shut(name string, b *backlog) {
	if b.shut.open != nil && time.Until(b.shut.until) >= pageShut {
		return
	}
	p.open(b)
	b.shut = shutting{time.Now().Add(mostShut), p.d.cfg.Servers.Shut(name, mostShut)}
}

// open ends shut.
func (p *planner) open(b *backlog) {
	if b.shut.open != nil {
		b.shut.open()
	}
	b.shut = shutting{}
}
