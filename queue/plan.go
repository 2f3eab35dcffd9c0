package queue

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
)

// planner gives tasks their places in line before they are enqueued. Nothing is charged: the turn of a task brings it, with its
// grant.
type planner struct{ limiter *throttle.Limiter }

// plan gives the items that have no result yet their places, and has asynq keep them until their fallback time. If planning fails,
// the items are enqueued as they are, and a worker gives them their places.
func (c *Client) plan(ctx context.Context, items []*item) {
	open := c.turns.open(items)
	if len(open) == 0 {
		return
	}
	asks := make([]waitlist.Waiter, len(open))
	for i, it := range open {
		asks[i] = it.ask
	}
	now := time.Now()
	placed, err := c.turns.limiter.Waitlist().Join(ctx, asks)
	if err != nil {
		return
	}
	for i, it := range open {
		at := placed[i]
		if at.Err != nil || at.Free { // a worker says so, or runs it
			continue
		}
		if at.Expected != throttle.Never {
			it.result.Start = now.Add(at.Expected)
		}
		it.result.Waits, it.result.Ahead = true, at.Ahead
		if at.Binding.Rule.Name != "" {
			it.result.WaitsFor = throttle.RuleInfoOf(at.Binding)
		}
		if it.tooLate(now, at) { // a worker reports it, as soon as it is certain
			continue
		}
		if c.onEnqueue != nil {
			it.result.noteWait(it.task.Headers())
		}
		c.park(ctx, it, it.heeding(now, at))
	}
}

// tooLate reports whether a task is expected to start after its deadline.
func (it *item) tooLate(now time.Time, placed waitlist.Joined) bool {
	return !it.deadline.IsZero() && placed.Expected != throttle.Never && now.Add(placed.Expected).After(it.deadline)
}

// heeding returns when asynq returns a task to its queue by itself: some time after its expected
// start, but no later than the end of its max wait or its deadline, so that a worker handles those.
func (it *item) heeding(now time.Time, placed waitlist.Joined) time.Time {
	at := now.Add(waitlist.SafetyNet(placed.Expected))
	if !it.deadline.IsZero() && it.deadline.Before(at) {
		at = it.deadline
	}
	for _, most := range []time.Duration{it.maxWait, placed.MaxWait} {
		if ends := now.Add(most); most > 0 && ends.Before(at) {
			at = ends
		}
	}
	return at
}

// park has asynq keep a task until at, unless its turn comes before.
func (c *Client) park(ctx context.Context, it *item, at time.Time) {
	parked, err := record(ctx, c.asynq, it.result.Queue, it.task, asynq.ProcessAt(secondAtOrAfter(at)))
	if err != nil {
		it.fail(err)
		return
	}
	it.call = parked
}

// open returns the items to be planned: all that can start at once but for their limits.
func (p *planner) open(items []*item) (open []*item) {
	if p.limiter == nil {
		return nil
	}
	for _, it := range items {
		if it.call != nil && it.ask.ID != "" {
			open = append(open, it)
		}
	}
	return open
}

// count adds an item to the summary, and records if its start is unknown.
func (p *planner) count(sum *Summary, it *item) {
	sum.count(it.result)
	if p.limiter == nil || it.result.State != Enqueued || !it.result.Start.IsZero() {
		return
	}
	earliest := time.Time{}
	if it.delay > 0 {
		earliest = time.Now().Add(it.delay)
	}
	sum.untold(earliest)
}

// binding returns the rule that the last waiter of a scope waits for. It is zero if there are no
// waiters or Redis does not answer.
func (p *planner) binding(ctx context.Context, scope string) Binding {
	if p.limiter == nil || scope == "" {
		return Binding{}
	}
	l, err := newOutlook(p.limiter).line(ctx, scope)
	if err != nil || !l.stood {
		return Binding{}
	}
	return l.start(spending{}).by
}
