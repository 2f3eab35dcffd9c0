package queue

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// planner queues tasks for their limits before they are enqueued.
type planner struct {
	limiter *throttle.Limiter
	weights *weights

	mu    sync.Mutex
	quiet map[string]time.Time // providers without waiters, and until when that is assumed
}

const (
	// planLead and planNear match the values that package worker dispatches by: a task that is enqueued
	// right after it was planned must be in asynq when its turn comes.
	planLead = 20 * time.Millisecond
	planNear = 150 * time.Millisecond
	// quietFor is how long single tasks are enqueued unplanned after one whose provider had no waiters.
	// If that changes meanwhile, a worker queues them.
	quietFor     = 100 * time.Millisecond
	maxQuietKept = 1000
)

// plan queues the items that have no result yet for their limits, and has asynq keep those that wait
// until their fallback time. If planning fails, the items are enqueued as they are, and a worker
// queues them.
func (c *Client) plan(ctx context.Context, items []*item) {
	open := c.turns.open(items)
	if len(open) == 0 {
		return
	}
	asks, weights := make([]throttle.Waiter, len(open)), c.turns.weights.now(ctx)
	for i, it := range open {
		asks[i] = weights.ranked(it.ask, it.result.Queue)
	}
	now := time.Now()
	placed, err := c.turns.limiter.Waitlist().Join(ctx, asks, planLead, planNear)
	if err != nil {
		return
	}
	for i, it := range open {
		c.turns.heard(it.ask.Scope, placed[i].Waits, now)
		if placed[i].Err == nil && placed[i].Expected != throttle.Never {
			it.result.Start = now.Add(placed[i].Expected)
		}
		if placed[i].Waits {
			it.result.Waits, it.result.Ahead, it.result.WaitsFor = true, placed[i].Ahead, placed[i].Binding
		}
		switch {
		case !placed[i].Waits:
		case it.tooLate(now, placed[i]): // a worker reports it, as soon as it is certain
		default:
			if c.onEnqueue != nil {
				it.result.noteWait(it.task.Headers())
			}
			c.park(ctx, it, it.heeding(now, placed[i]))
		}
	}
}

// weights are the weights of the workers' queues, as far as a client knows them.
type weights struct {
	rdb redis.UniversalClient // nil if the caller sets the weights

	mu    sync.Mutex
	known Weights
	asked time.Time
}

// weightsFor is how long read weights are used.
const weightsFor = 10 * time.Second

func weightsOf(rdb redis.UniversalClient, cfg ClientConfig) *weights {
	if len(cfg.Queues) > 0 {
		return &weights{known: NewWeights(cfg.Queues, cfg.StrictPriority)}
	}
	return &weights{rdb: rdb}
}

// now returns the weights. One caller reads them again, while others use the last ones; if reading
// fails, the last ones stay in use.
func (w *weights) now(ctx context.Context) Weights {
	w.mu.Lock()
	known, fresh := w.known, w.rdb == nil || time.Since(w.asked) < weightsFor
	if !fresh {
		w.asked = time.Now()
	}
	w.mu.Unlock()
	if fresh {
		return known
	}
	read, err := PublishWeights(ctx, w.rdb)
	if err != nil {
		return known
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = read
	return read
}

// tooLate reports whether a task is expected to start after its deadline.
func (it *item) tooLate(now time.Time, placed throttle.Joined) bool {
	return !it.deadline.IsZero() && placed.Expected != throttle.Never && now.Add(placed.Expected).After(it.deadline)
}

// heeding returns when asynq returns a task to its queue by itself: some time after its expected
// start, but no later than the end of its max wait or its deadline, so that a worker handles those.
func (it *item) heeding(now time.Time, placed throttle.Joined) time.Time {
	at := now.Add(throttle.FallbackDelay(placed.Expected))
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

// open returns the items to be planned: all eligible items of a batch, however few are sent together,
// and a single task unless its provider was quiet a moment ago.
func (p *planner) open(items []*item) []*item {
	if p.limiter == nil {
		return nil
	}
	var open []*item
	for _, it := range items {
		if it.call != nil && it.ask.ID != "" {
			open = append(open, it)
		}
	}
	if len(open) == 1 && open[0].result.Line == 0 && p.isQuiet(open[0].ask.Scope) {
		return nil
	}
	return open
}

func providerOf(scope string) string {
	name, _, _ := strings.Cut(scope, "/")
	return name
}

func (p *planner) isQuiet(scope string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.quiet[providerOf(scope)])
}

func (p *planner) heard(scope string, waits bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waits {
		delete(p.quiet, providerOf(scope))
		return
	}
	if p.quiet == nil || len(p.quiet) >= maxQuietKept {
		p.quiet = map[string]time.Time{}
	}
	p.quiet[providerOf(scope)] = now.Add(quietFor)
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
