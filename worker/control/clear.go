package control

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/waiting"
)

// clearPage is how many places of a queue one step of clear reads at once.
const clearPage = 1000

// clearing is a clear under way.
type clearing struct {
	*Service
	who      Actor
	tasks    *waiting.Tasks
	change   TaskChange
	most     int
	done     *TasksDone
	seen     map[waitlist.Ref]bool // those that were looked at
	searched int                   // those of them that were left
}

// clear cancels the tasks of a scope and below it whose wait began before c.Before. It passes over the
// queues once, cancels most tasks, and sets done.More if it did not reach the end.
func (s *Service) clear(ctx context.Context, who Actor, c TaskChange, most int, done *TasksDone) error {
	if c.Before.IsZero() {
		now, err := s.rdb.Time(ctx).Result()
		if err != nil {
			return err
		}
		c.Before = now
	}
	providers, err := s.providersOf(ctx, c.Scope)
	if err != nil {
		return err
	}
	d := &clearing{Service: s, who: who, tasks: waiting.New(s.rdb, s.limiter), change: c, most: most, done: done, seen: map[waitlist.Ref]bool{}}
	for _, provider := range providers {
		if err := d.queued(ctx, provider); err != nil {
			return err
		}
	}
	return nil
}

func (d *clearing) queued(ctx context.Context, provider string) error {
	line := inspect.Of(d.limiter.Waitlist()).Tasks(provider)
	for !d.done.More {
		some, err := line.Next(ctx, clearPage)
		if err != nil {
			return err
		}
		before := len(d.seen)
		for _, p := range some {
			if err := d.cancelOne(ctx, p); err != nil || d.done.More {
				return err
			}
		}
		if len(some) < clearPage || len(d.seen) == before { // the list starts over after its end
			return nil
		}
	}
	return nil
}

func (d *clearing) cancelOne(ctx context.Context, p waitlist.Ref) error {
	if d.seen[p] || !covers(d.change.Scope, p.Scope) {
		return nil
	}
	if d.done.Changed >= d.most || d.searched >= mostSearched {
		d.done.More = true
		return nil
	}
	d.seen[p] = true
	if d.refuses(d.who, d.change, p.Scope, 1, &d.done.Refused) {
		d.searched++
		return nil
	}
	later, err := d.later(p.Queue, p.ID)
	changed := d.done.Changed
	if err == nil && !later {
		err = d.done.change(ctx, d.tasks, d.change, meant{p.Queue, p.ID, p.Scope})
	}
	if d.done.Changed == changed {
		d.searched++
	}
	return err
}

// later reports whether the wait of a task began after the clear.
func (d *clearing) later(name, id string) (bool, error) {
	info, err := d.inspector.GetTaskInfo(name, id)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return dueOf(info).After(d.change.Before), nil
}

// dueOf returns when the wait of a task began by its headers, zero if they do not say.
func dueOf(info *asynq.TaskInfo) time.Time {
	at, err := time.Parse(time.RFC3339Nano, info.Headers[queue.HeaderDue])
	if err != nil {
		return time.Time{}
	}
	return at
}

// countUnder counts the tasks that wait at a scope and below it. It counts 10,000 scopes of each provider at most.
func (s *Service) countUnder(ctx context.Context, who Actor, c TaskChange, n *TaskCount) error {
	queues, more, err := s.queuesUnder(ctx, []string{c.Scope})
	n.More = more
	for _, q := range queues {
		if !s.refuses(who, c, q.Scope, q.Own, &n.Refused) {
			n.Tasks += q.Own
		}
	}
	return err
}
