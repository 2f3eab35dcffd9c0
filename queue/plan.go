package queue

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
)

// plan gives the items that could start at once, but for their limits, their places in the queues of their scopes, and has asynq
// keep them until their fallback time. Nothing is charged. If planning fails, the items are enqueued as they are, and a worker
// gives them their places.
func (c *Client) plan(ctx context.Context, items []*item) {
	var open []*item
	var waiters []waitlist.Waiter
	for _, it := range items {
		if it.result.State == "" && it.waiter.ID != "" {
			open, waiters = append(open, it), append(waiters, it.waiter)
		}
	}
	if len(open) == 0 {
		return
	}
	now := time.Now()
	placed, err := c.cfg.Limiter.Waitlist().Join(ctx, waiters)
	if err != nil {
		return
	}
	for i, it := range open {
		if at := placed[i]; at.Err == nil && !at.Free { // otherwise a worker reports the error, or runs the task
			c.park(ctx, it, now, at)
		}
	}
}

// park notes the place of a task, and has asynq keep the task until its turn or its fallback time.
func (c *Client) park(ctx context.Context, it *item, now time.Time, at waitlist.Joined) {
	r := &it.result
	if at.Expected != throttle.Never {
		r.Start = now.Add(at.Expected)
	}
	r.Waits, r.Ahead = true, at.Ahead
	if at.Binding.Rule.Name != "" {
		r.WaitsFor = throttle.RuleInfoOf(at.Binding)
	}
	if expires(it.from, r.Start, now) == "deadline" { // a worker reports it, as soon as it is certain
		return
	}
	if c.cfg.OnEnqueue != nil {
		r.noteWait(it.task.Headers())
	}
	back := asynq.ProcessAt(secondAtOrAfter(it.fallback(now, at)))
	parked, err := record(ctx, c.asynq, it.task, back)
	if err != nil {
		it.fail(err)
		return
	}
	it.call = parked
}

// fallback returns when asynq returns a task to its queue by itself: some time after its expected
// start, but no later than its longest wait or its deadline, so that a worker handles those.
func (it *item) fallback(now time.Time, placed waitlist.Joined) time.Time {
	wait := waitlist.SafetyNet(placed.Expected)
	for _, most := range []time.Duration{it.from.MaxWait, placed.MaxWait} {
		if most > 0 {
			wait = min(wait, most)
		}
	}
	at := now.Add(wait)
	if end := it.from.Deadline; !end.IsZero() && end.Before(at) {
		return end
	}
	return at
}

// count adds an item to the summary, and counts it there if its start is unknown.
func (c *Client) count(sum *Summary, it *item) {
	sum.count(it.result)
	if c.cfg.Limiter == nil || it.result.State != Enqueued || !it.result.Start.IsZero() {
		return
	}
	if it.from.Delay > 0 {
		sum.unknownStart(time.Now().Add(it.from.Delay))
	} else {
		sum.unknownStart(time.Time{})
	}
}

// binding returns the rule that the last waiter of a scope waits for. It is zero if there are no
// waiters or Redis does not answer.
func (c *Client) binding(ctx context.Context, scope string) Binding {
	if c.cfg.Limiter == nil || scope == "" {
		return Binding{}
	}
	l, err := newOutlook(c.cfg.Limiter).line(ctx, scope)
	if err != nil || !l.stood {
		return Binding{}
	}
	return l.start(Task{}).by
}
