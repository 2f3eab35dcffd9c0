package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// planner gives the tasks of a backlog their turns where they stand, in pending, so
// that each need not be picked up once to learn that it must wait, and nobody waits
// behind them all. See docs/decisions/0016. It is safe for concurrent use.
type planner struct {
	d *Dispatcher

	mu     sync.Mutex
	queues map[string]*backlog
	passes sync.WaitGroup
}

// backlog is what is known of one queue.
type backlog struct {
	since  time.Time       // when put-backs were begun to be counted
	met    int             // how many there were
	types  map[string]bool // of tasks that had to go back: others may have no handler here
	busy   bool            // it is being planned
	rested time.Time       // when it may be again
	size   int             // of the next page
	told   bool            // that it could not be planned
	shut   shutting
}

// shutting is how long nobody here takes tasks of a queue.
type shutting struct {
	until time.Time
	open  func() // nil: it is open
}

const (
	// planAfter is how many tasks of a queue, put back within lately, make a backlog.
	planAfter = 4
	// planRest is how long a queue is left alone after a pass, and planFault after one
	// that failed.
	planRest, planFault = 100 * time.Millisecond, 5 * time.Second
	// mostForward is how long asynq waits with what else is due while a queue is planned.
	mostForward = 250 * time.Millisecond
	// planLock is how long a process that died keeps others from planning.
	planLock = 2 * time.Second
	// planClaim is when asynq brings back what a process claimed that died.
	planClaim = 5 * time.Second

	// settlePause is what a task takes from asynq to its handler, and more.
	settlePause = 500 * time.Microsecond
	mostSettle  = 10 * time.Millisecond
	// mostShut is how long no task of the queue is taken, and pageShut is how much of that there is left for a page at least.
	mostShut, pageShut = 100 * time.Millisecond, 50 * time.Millisecond
	// shutPause is how often one who does not plan a queue looks whether another still does.
	shutPause = 10 * time.Millisecond
	// mostProviders is of how many a page is: each costs round trips.
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

// putBack notes that a task of a queue was picked up and put back, and plans the queue when
// there were several. It does not block.
func (p *planner) putBack(name, kind string) {
	if !p.d.cfg.Mover.Parks() {
		return
	}
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

// begin begins a pass over a queue, and returns what is closed when it is over. p.mu is held.
func (p *planner) begin(name string, b *backlog) (over <-chan struct{}) {
	b.busy = true
	done := make(chan struct{})
	p.passes.Go(func() {
		defer close(done)
		p.run(name, b)
	})
	return done
}

// forwarded notes that asynq has moved several tasks of a queue into pending, since they were due, and plans the queue: most of
// them came by themselves, and stand in line. It returns when that is done, so that few of them are picked up before, or
// after mostForward: asynq has other queues to look after.
func (p *planner) forwarded(name string, n int) {
	if n < planAfter || !p.d.cfg.Mover.Parks() || p.d.cfg.Queues.Stands(name) {
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

// wait returns when the passes that Stop ends have seen to what they have claimed, or after
// a while.
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

// run plans a queue, and lets it rest.
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

// lock keeps other processes from planning the queue. One that loses it, since a page took
// so long, only has another do what it does itself.
func (p *planner) lock(ctx context.Context, name string) (free bool, err error) {
	err = p.d.cfg.Redis.SetArgs(ctx, planKey(name), 1, redis.SetArgs{Mode: "NX", TTL: planLock}).Err()
	if err == redis.Nil { //nolint:errorlint // as the client returns it
		return false, nil
	}
	return err == nil, err
}

// leave takes no tasks of a queue that another process plans, for a while: most would have to be put back.
func (p *planner) leave(ctx context.Context, name string, b *backlog) error {
	for p.shut(name, b); time.Now().Before(b.shut.until) && asynqx.Sleep(ctx, shutPause); {
		if there, err := p.d.cfg.Redis.Exists(ctx, planKey(name)).Result(); err != nil || there == 0 {
			return err
		}
	}
	return nil
}

// shut has nobody here take tasks of a queue, from now on or since the page before. It opens by itself: a Redis that hangs
// costs the order, and not the other tasks.
func (p *planner) shut(name string, b *backlog) {
	if b.shut.open != nil && time.Until(b.shut.until) >= pageShut {
		return
	}
	p.open(b)
	open, settled := p.d.cfg.Servers.Shut(name)
	timer := time.AfterFunc(mostShut, open) // before anything that may hang
	b.shut = shutting{time.Now().Add(mostShut), func() { timer.Stop(); open() }}
	settled()
}

// open ends shut.
func (p *planner) open(b *backlog) {
	if b.shut.open != nil {
		b.shut.open()
	}
	b.shut = shutting{}
}

// page is what became of the first tasks in pending.
type page struct {
	tasks, bytes int // that were read
	full         bool
	parked       int
}

// more says whether another page is worth it: this one was full, and half of it waits.
func (p page) more() bool { return p.full && p.parked > 0 && 2*p.parked >= p.tasks }

// next returns how many tasks to plan after a page of size, in this pass or another.
func (p page) next(size int) int {
	if p.more() {
		size *= 2
	}
	size = min(max(size, firstPage), mostPage)
	if p.bytes > 0 {
		size = max(1, min(size, p.tasks*pageBytes/p.bytes))
	}
	return size
}

// page plans the tasks that are taken next. They are claimed first, so that nobody picks
// up, or grants, what is about to be given a place; then they are given their places; then
// those that have none, or whose turn has come already, go back to where they were.
func (p *planner) page(ctx context.Context, name string, b *backlog) (page, error) {
	out, jobs, err := p.read(name, b)
	if err != nil || len(jobs) == 0 {
		return out, err
	}
	jobs, placed, err := p.place(ctx, name, b, jobs)
	ctx = context.WithoutCancel(ctx) // what is claimed is seen to
	if err != nil {
		return out, errors.Join(err, p.release(ctx, name, jobs))
	}
	var parked, back []*Task
	var until []time.Time
	for i, j := range jobs {
		at, waits := p.net(j, placed[i])
		if waits {
			parked, until = append(parked, j), append(until, at)
		} else {
			back = append(back, j)
		}
	}
	out.parked = len(parked)
	err = p.release(ctx, name, back)
	if len(back) > 0 {
		p.open(b) // they may run
	}
	return out, errors.Join(err, p.keep(ctx, name, parked, until))
}

// net is until when asynq keeps a task that was given a place, and whether it may: one
// whose turn has come may not, nor one whose wait is bounded, but not known to have begun
// or over, since that is judged when it is picked up.
func (p *planner) net(j *Task, at throttle.Joined) (until time.Time, waits bool) {
	if at.Err != nil || !at.Waits || at.Expected == 0 {
		return until, false
	}
	if at.Again {
		p.d.CameByItself(j.Waiter.Scope)
	}
	until = time.Now().Add(p.d.FallbackDelay(at.Expected))
	for _, most := range []time.Duration{j.MaxWait, at.MaxWait} {
		if p.d.cfg.Expires == nil || most == 0 {
			continue
		}
		if j.Due.IsZero() {
			return until, false
		}
		ends := p.d.cfg.Expires(j.Waiter.Scope, j.Due, most)
		if !ends.After(time.Now()) {
			return until, false
		}
		if ends.Before(until) {
			until = ends
		}
	}
	return until, true
}

// read returns those of the tasks that are taken next that may wait, of a few providers.
func (p *planner) read(name string, b *backlog) (out page, jobs []*Task, err error) {
	infos, err := p.d.cfg.Inspector.ListPendingTasks(name, asynq.PageSize(b.size))
	if err != nil {
		return out, nil, err
	}
	out.full = len(infos) >= b.size
	providers := map[string]bool{}
	for _, info := range infos {
		out.tasks++
		out.bytes += bytesOf(info)
		j := p.waits(name, info, b)
		if j == nil {
			continue
		}
		if providers[Provider(j.Waiter.Scope)] = true; len(providers) > mostProviders {
			break // the rest is for the next page, or to be picked up
		}
		jobs = append(jobs, j)
	}
	return out, jobs, nil
}

func bytesOf(info *asynq.TaskInfo) int {
	n := len(info.Payload)
	for key, value := range info.Headers {
		n += len(key) + len(value)
	}
	return n
}

// waits reads a pending task, if it is one that may wait where nobody sees it: nil for
// one that has to be picked up to be judged.
func (p *planner) waits(name string, info *asynq.TaskInfo, b *backlog) *Task {
	p.mu.Lock()
	known := b.types[info.Type]
	p.mu.Unlock()
	if !known || info.ID == "" || info.Group != "" || info.Type == asynqx.CarrierType || !info.Deadline.IsZero() {
		return nil
	}
	task, waits := p.d.cfg.Read(name, info)
	if !waits {
		return nil
	}
	return &task
}

// claim takes tasks out of pending, and returns those that were there. Should this
// process end, asynq brings them back in a while.
func (p *planner) claim(ctx context.Context, name string, jobs []*Task) (claimed []*Task, err error) {
	moved, err := p.d.cfg.Mover.Park(ctx, name, idsOf(jobs), time.Now().Add(planClaim))
	if err != nil {
		return jobs, err // any of them may have been
	}
	for i := range moved {
		if moved[i] {
			claimed = append(claimed, jobs[i])
		}
	}
	return claimed, nil
}

func idsOf(jobs []*Task) (ids []string) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// place claims tasks and gives them places. Meanwhile nobody here takes others of their queue: some that
// stand behind the page would be in line before it.
func (p *planner) place(ctx context.Context, name string, b *backlog, jobs []*Task) (claimed []*Task, placed []throttle.Joined, err error) {
	p.shut(name, b)
	claimed, err = p.claim(ctx, name, jobs)
	if err != nil || len(claimed) == 0 {
		return claimed, nil, err
	}
	p.settle()
	placed, err = p.lineUp(context.WithoutCancel(ctx), claimed)
	return claimed, placed, err
}

// settle waits, not for long, until those that this process has taken before the page have
// their places: they are before it. What other processes have taken is not waited for.
func (p *planner) settle() {
	busy := func() bool { return p.d.load.asking.Load() > 0 || p.d.cfg.Servers.AtHand() }
	for waited := time.Duration(0); waited == 0 || waited < mostSettle && busy(); waited += settlePause {
		if !asynqx.Sleep(p.d.cfg.Serving, settlePause) {
			return
		}
	}
}

// lineUp gives tasks their places, and has their providers looked at.
func (p *planner) lineUp(ctx context.Context, jobs []*Task) ([]throttle.Joined, error) {
	asks := make([]throttle.Waiter, len(jobs))
	for i, j := range jobs {
		asks[i] = j.Waiter
	}
	placed, err := p.d.cfg.Limiter.Waitlist().Join(ctx, asks, p.d.Lead(), throttle.QueueAll)
	looked := map[string]bool{}
	for i, j := range jobs {
		if name := Provider(j.Waiter.Scope); err == nil && placed[i].Waits && !looked[name] {
			looked[name] = true
			p.d.look(name, hint{})
		}
	}
	return placed, err
}

// release puts claimed tasks before all others in pending.
func (p *planner) release(ctx context.Context, name string, jobs []*Task) error {
	if len(jobs) == 0 {
		return nil
	}
	_, err := p.d.cfg.Mover.Release(ctx, name, idsOf(jobs))
	p.d.cfg.Servers.Kick()
	return err
}

// keep has asynq keep claimed tasks until their safety net, those whose turn has not come
// meanwhile.
func (p *planner) keep(ctx context.Context, name string, jobs []*Task, until []time.Time) error {
	if len(jobs) == 0 {
		return nil
	}
	var foreign []asynqx.Lock // which asynq would let run out
	var its []time.Time
	nets := make([]redis.Z, len(jobs))
	for i, j := range jobs {
		nets[i] = redis.Z{Score: float64(asynqx.SecondAtOrAfter(until[i])), Member: j.ID}
		p.d.cfg.Observer.Rescheduled(name, time.Until(until[i]))
		if !j.Own {
			foreign, its = append(foreign, j.Lock), append(its, until[i])
		}
	}
	err := p.d.cfg.Redis.ZAddXX(ctx, "asynq:{"+name+"}:scheduled", nets...).Err()
	if err := asynqx.ExtendLocks(ctx, p.d.cfg.Redis, foreign, its); err != nil {
		p.d.cfg.Observer.Failed("lock")
	}
	return err
}
