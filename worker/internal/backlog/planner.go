// Package backlog gives the tasks of a backlog their places while they are pending, so that each need not be picked up once only to be
// put back. A page of tasks is taken out of pending, gets its places, and waits; those that may run go back. Tasks of one page keep
// their order. See docs/decisions/0016.
//
// Only package worker uses it.
package backlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Config configures a Planner. All fields but Expires and Planned are required.
type Config struct {
	// Redis is the Redis of asynq's tasks, and List where they get their places.
	Redis redis.UniversalClient
	List  *waitlist.List
	// Inspector and Mover read and move asynq's tasks, and Servers are those of this process.
	Inspector *asynq.Inspector
	Mover     *asynqx.Mover
	Servers   *asynqx.Servers
	Observer  Observer
	Log       *slog.Logger
	// Serving ends when nothing is planned any more.
	Serving context.Context //nolint:containedctx // of the passes
	// Read reads a pending task of a queue. waits is false for a task that must be picked up for a decision.
	Read func(queue string, info *asynq.TaskInfo) (task Task, waits bool)
	// Expires returns when a wait of at most maxWait that began at due, by Redis's clock, ends by this process's clock. Nil means
	// that tasks wait for as long as it takes.
	Expires func(scope string, due time.Time, maxWait time.Duration) time.Time
	// Planned is called for each task that waits from now on. Nil: nothing is.
	Planned func(Task)
}

// Observer observes a Planner; see worker.Observer. Its methods must not block.
type Observer interface {
	Rescheduled(queue string, wait time.Duration)
	Failed(kind string)
}

// Task is a pending task that may wait where it stands.
type Task struct {
	Waiter waitlist.Waiter
	// Own is true if package queue wrote the task. Lock is the unique lock that it may hold.
	Own  bool
	Lock asynqx.Lock
	// MaxWait is the task's own, 0 for none. Due is when its wait began; zero if that is known only when it is picked up.
	MaxWait time.Duration
	Due     time.Time
}

// Planner plans the queues of this process that have a backlog. It is safe for concurrent use.
type Planner struct {
	cfg Config

	mu     sync.Mutex
	queues map[string]*queue
	passes sync.WaitGroup
}

// queue is what is known of one queue.
type queue struct {
	since  time.Time       // when the count of put-backs began
	met    int             // how many there were
	types  map[string]bool // of tasks that had to go back: others may have no handler here
	busy   bool            // it is being planned
	rested time.Time       // when it may be planned again
	warned bool            // that it cannot be planned
}

const (
	// planAfter is how many tasks of a queue, put back within lately, make a backlog.
	planAfter, lately = 4, 50 * time.Millisecond
	// planRest is how long a queue is left alone after a pass, and planFault after a failed task.
	planRest, planFault = 100 * time.Millisecond, 5 * time.Second
	// planClaim is when asynq brings back what a process that died has taken out of pending.
	planClaim = 5 * time.Second
	// planPage is how many tasks are planned at once: no script takes longer than about a millisecond for them.
	planPage = 128
	maxTypes = 1000
)

// New returns a Planner. It does no I/O.
func New(cfg Config) *Planner { return &Planner{cfg: cfg, queues: map[string]*queue{}} }

// PutBack records that a task of a queue was picked up and put back, and plans the queue after several. It does not block.
func (p *Planner) PutBack(name, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, now := p.queues[name], time.Now()
	if b == nil {
		b = &queue{types: map[string]bool{}}
		p.queues[name] = b
	}
	if len(b.types) < maxTypes {
		b.types[kind] = true
	}
	if now.Sub(b.since) > lately {
		b.since, b.met = now, 0
	}
	if b.met++; b.met < planAfter || b.busy || now.Before(b.rested) || p.stopped() {
		return
	}
	b.busy = true
	p.passes.Go(func() { p.run(name, b) })
}

// Wait returns when the passes that end with Config.Serving have settled what they have claimed, or after a few seconds. Call it when
// Config.Serving has ended.
func (p *Planner) Wait() {
	p.mu.Lock()
	p.mu.Unlock() //nolint:staticcheck // a PutBack that held it has begun its pass, and no other begins any more
	ended := make(chan struct{})
	go func() { p.passes.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(planClaim):
	}
}

func (p *Planner) stopped() bool { return p.cfg.Serving.Err() != nil }

var errPanicked = errors.New("it panicked")

// run plans a queue, and then leaves it alone for a while.
func (p *Planner) run(name string, b *queue) {
	err := errPanicked
	defer func() {
		if x := recover(); x != nil && !b.warned {
			p.cfg.Log.Error("backlog planner panicked", "queue", name, "panic", fmt.Sprint(x), "stack", string(debug.Stack()))
		}
		rest := planRest
		if err != nil && !p.stopped() {
			rest = planFault
			p.cfg.Observer.Failed("plan")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		b.busy, b.warned, b.rested = false, err != nil, time.Now().Add(rest)
	}()
	for more := true; more; {
		if more, err = p.page(p.cfg.Serving, name, b); err != nil {
			break
		}
	}
	if err != nil && !b.warned && !p.stopped() {
		p.cfg.Log.Warn("cannot plan a backlog; each task is picked up once to wait for its turn", "queue", name, "error", err)
	}
}

// page plans the tasks that are taken next. more says that most of them wait, and that others may follow.
func (p *Planner) page(ctx context.Context, name string, b *queue) (more bool, err error) {
	infos, err := p.cfg.Inspector.ListPendingTasks(name, asynq.PageSize(planPage))
	if err != nil {
		return false, err
	}
	tasks, err := p.claim(ctx, name, p.read(name, infos, b))
	ctx = context.WithoutCancel(ctx) // what was claimed must be settled
	var back, waits []Task
	var until []time.Time
	if placed, failed := p.join(ctx, tasks, err); failed != nil {
		back, err = tasks, failed // any of them may have been claimed, or have a place
	} else {
		for i, task := range tasks {
			if at, is := p.net(task, placed[i]); is {
				waits, until = append(waits, task), append(until, at)
			} else {
				back = append(back, task)
			}
		}
	}
	err = errors.Join(err, p.release(ctx, name, back), p.keep(ctx, name, waits, until))
	return len(infos) == planPage && 2*len(waits) >= len(infos), err
}

// read returns those of the tasks that may wait without being picked up.
func (p *Planner) read(name string, infos []*asynq.TaskInfo, b *queue) (tasks []Task) {
	for _, info := range infos {
		p.mu.Lock()
		known := b.types[info.Type]
		p.mu.Unlock()
		if !known || info.ID == "" || info.Group != "" || !info.Deadline.IsZero() {
			continue
		}
		if task, waits := p.cfg.Read(name, info); waits {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// claim takes tasks out of pending, and returns those that were there; after an error, all. If this process dies, asynq brings them
// back after a while.
func (p *Planner) claim(ctx context.Context, name string, tasks []Task) (claimed []Task, err error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	moved, err := p.cfg.Mover.Park(ctx, name, taskIDs(tasks), time.Now().Add(planClaim))
	if err != nil {
		return tasks, err
	}
	for i := range moved {
		if moved[i] {
			claimed = append(claimed, tasks[i])
		}
	}
	return claimed, nil
}

func taskIDs(tasks []Task) (ids []string) {
	for _, task := range tasks {
		ids = append(ids, task.Waiter.ID)
	}
	return ids
}

func (p *Planner) join(ctx context.Context, tasks []Task, err error) ([]waitlist.Joined, error) {
	if err != nil || len(tasks) == 0 {
		return nil, err
	}
	waiters := make([]waitlist.Waiter, len(tasks))
	for i, task := range tasks {
		waiters[i] = task.Waiter
	}
	return p.cfg.List.Join(ctx, waiters)
}

// net returns until when asynq keeps a task that was given a place, and whether it may wait. A task whose wait is bounded may not if
// the wait is over, or its beginning is unknown: that is decided when it is picked up.
func (p *Planner) net(task Task, at waitlist.Joined) (until time.Time, waits bool) {
	if at.Err != nil || at.Free {
		return until, false
	}
	until = time.Now().Add(waitlist.SafetyNet(at.Expected))
	for _, most := range []time.Duration{task.MaxWait, at.MaxWait} {
		if p.cfg.Expires == nil || most == 0 {
			continue
		}
		if task.Due.IsZero() {
			return until, false
		}
		ends := p.cfg.Expires(task.Waiter.Scope, task.Due, most)
		if !ends.After(time.Now()) {
			return until, false
		}
		if ends.Before(until) {
			until = ends
		}
	}
	return until, true
}

// release puts claimed tasks ahead of all others in pending.
func (p *Planner) release(ctx context.Context, name string, tasks []Task) error {
	if len(tasks) == 0 {
		return nil
	}
	_, err := p.cfg.Mover.Release(ctx, name, taskIDs(tasks))
	p.cfg.Servers.Kick()
	return err
}

// keep has asynq keep claimed tasks, except those whose turn has come meanwhile, until they come back by themselves.
func (p *Planner) keep(ctx context.Context, name string, tasks []Task, until []time.Time) error {
	if len(tasks) == 0 {
		return nil
	}
	var foreign []asynqx.Lock // which asynq would let run out
	var ends []time.Time
	nets := make([]redis.Z, len(tasks))
	for i, task := range tasks {
		nets[i] = redis.Z{Score: float64(asynqx.SecondAtOrAfter(until[i])), Member: task.Waiter.ID}
		p.cfg.Observer.Rescheduled(name, time.Until(until[i]))
		if p.cfg.Planned != nil {
			p.cfg.Planned(task)
		}
		if !task.Own {
			foreign, ends = append(foreign, task.Lock), append(ends, until[i])
		}
	}
	err := p.cfg.Redis.ZAddXX(ctx, asynqx.QueuePrefix(name)+"scheduled", nets...).Err()
	if err := asynqx.ExtendLocks(ctx, p.cfg.Redis, foreign, ends); err != nil {
		p.cfg.Observer.Failed("lock")
	}
	return err
}
