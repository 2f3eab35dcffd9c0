package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// page is the result for the first tasks in pending.
type page struct {
	tasks, bytes int // that were read
	full         bool
	parked       int
}

// more reports whether another page is worth it: this one was full, and at least half of it waits.
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

// page plans the tasks that are taken next. It first claims them, so that no worker picks up, and no
// process grants, what is about to get a place. Then they get their places. Then the tasks without a
// place, or whose turn has come already, go back to where they were.
func (p *planner) page(ctx context.Context, name string, b *backlog) (page, error) {
	out, tasks, err := p.read(name, b)
	if err != nil || len(tasks) == 0 {
		return out, err
	}
	tasks, placed, err := p.place(ctx, name, b, tasks)
	ctx = context.WithoutCancel(ctx) // what was claimed must be settled
	if err != nil {
		return out, errors.Join(err, p.release(ctx, name, tasks))
	}
	var parked, back []*Task
	var until []time.Time
	for i, one := range tasks {
		at, waits := p.net(one, placed[i])
		if waits {
			parked, until = append(parked, one), append(until, at)
		} else {
			back = append(back, one)
		}
	}
	out.parked = len(parked)
	err = p.release(ctx, name, back)
	if len(back) > 0 {
		p.open(b) // they may run
	}
	return out, errors.Join(err, p.keep(ctx, name, parked, until))
}

// net returns until when asynq keeps a task that was given a place, and whether it may wait. A task
// whose turn has come may not. Nor may one whose wait is bounded if it is over, or its beginning is
// unknown: that is decided when it is picked up.
func (p *planner) net(one *Task, at throttle.Joined) (until time.Time, waits bool) {
	if at.Err != nil || !at.Waits || at.Expected == 0 {
		return until, false
	}
	if at.Again {
		p.d.CameByItself(one.Waiter.Scope)
	}
	until = time.Now().Add(p.d.FallbackDelay(at.Expected))
	for _, most := range []time.Duration{one.MaxWait, at.MaxWait} {
		if p.d.cfg.Expires == nil || most == 0 {
			continue
		}
		if one.Due.IsZero() {
			return until, false
		}
		ends := p.d.cfg.Expires(one.Waiter.Scope, one.Due, most)
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
func (p *planner) read(name string, b *backlog) (out page, tasks []*Task, err error) {
	infos, err := p.d.cfg.Inspector.ListPendingTasks(name, asynq.PageSize(b.size))
	if err != nil {
		return out, nil, err
	}
	out.full = len(infos) >= b.size
	providers := map[string]bool{}
	for _, info := range infos {
		out.tasks++
		out.bytes += bytesOf(info)
		one := p.waits(name, info, b)
		if one == nil {
			continue
		}
		if providers[Provider(one.Waiter.Scope)] = true; len(providers) > mostProviders {
			break // the rest is for the next page, or to be picked up
		}
		tasks = append(tasks, one)
	}
	return out, tasks, nil
}

func bytesOf(info *asynq.TaskInfo) int {
	n := len(info.Payload)
	for key, value := range info.Headers {
		n += len(key) + len(value)
	}
	return n
}

// waits reads a pending task that may wait without being picked up: nil for one that must be picked up
// for a decision.
func (p *planner) waits(name string, info *asynq.TaskInfo, b *backlog) *Task {
	p.mu.Lock()
	known := b.types[info.Type]
	p.mu.Unlock()
	if !known || info.ID == "" || info.Group != "" || !info.Deadline.IsZero() {
		return nil
	}
	task, waits := p.d.cfg.Read(name, info)
	if !waits {
		return nil
	}
	return &task
}

// claim takes tasks out of pending, and returns those that were there. If this process dies, asynq
// brings them back after a while.
func (p *planner) claim(ctx context.Context, name string, tasks []*Task) (claimed []*Task, err error) {
	moved, err := p.d.cfg.Mover.Park(ctx, name, idsOf(tasks), time.Now().Add(planClaim))
	if err != nil {
		return tasks, err // any of them may have been
	}
	for i := range moved {
		if moved[i] {
			claimed = append(claimed, tasks[i])
		}
	}
	return claimed, nil
}

func idsOf(tasks []*Task) (ids []string) {
	for _, one := range tasks {
		ids = append(ids, one.ID)
	}
	return ids
}

// place claims tasks and gives them places, in the order of the page. Meanwhile this process takes no
// other tasks of their queue.
func (p *planner) place(ctx context.Context, name string, b *backlog, tasks []*Task) (claimed []*Task, placed []throttle.Joined, err error) {
	p.shut(name, b)
	claimed, err = p.claim(ctx, name, tasks)
	if err != nil || len(claimed) == 0 {
		return claimed, nil, err
	}
	placed, err = p.lineUp(context.WithoutCancel(ctx), claimed)
	return claimed, placed, err
}

// lineUp gives tasks their places, and has their providers polled.
func (p *planner) lineUp(ctx context.Context, tasks []*Task) ([]throttle.Joined, error) {
	asks := make([]throttle.Waiter, len(tasks))
	for i, one := range tasks {
		asks[i] = one.Waiter
	}
	placed, err := p.d.cfg.Limiter.Waitlist().Join(ctx, asks, p.d.Lead(), throttle.QueueAll)
	looked := map[string]bool{}
	for i, one := range tasks {
		if name := Provider(one.Waiter.Scope); err == nil && placed[i].Waits && !looked[name] {
			looked[name] = true
			p.d.look(name, hint{})
		}
	}
	return placed, err
}

// release puts claimed tasks ahead of all others in pending.
func (p *planner) release(ctx context.Context, name string, tasks []*Task) error {
	if len(tasks) == 0 {
		return nil
	}
	_, err := p.d.cfg.Mover.Release(ctx, name, idsOf(tasks))
	p.d.cfg.Servers.Kick()
	return err
}

// keep makes asynq keep claimed tasks, except those whose turn has come meanwhile, until they come
// back by themselves.
func (p *planner) keep(ctx context.Context, name string, tasks []*Task, until []time.Time) error {
	if len(tasks) == 0 {
		return nil
	}
	var foreign []asynqx.Lock // which asynq would let run out
	var its []time.Time
	nets := make([]redis.Z, len(tasks))
	for i, one := range tasks {
		nets[i] = redis.Z{Score: float64(asynqx.SecondAtOrAfter(until[i])), Member: one.ID}
		p.d.cfg.Observer.Rescheduled(name, time.Until(until[i]))
		if !one.Own {
			foreign, its = append(foreign, one.Lock), append(its, until[i])
		}
	}
	err := p.d.cfg.Redis.ZAddXX(ctx, "asynq:{"+name+"}:scheduled", nets...).Err()
	if err := asynqx.ExtendLocks(ctx, p.d.cfg.Redis, foreign, its); err != nil {
		p.d.cfg.Observer.Failed("lock")
	}
	return err
}
