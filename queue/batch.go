package queue

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Summary counts the results of a batch.
type Summary struct {
	Enqueued  int
	Duplicate int
	Invalid   int
	Failed    int
	// Random is how many of the enqueued have an id that was drawn here, and
	// would be enqueued once more by running the batch again.
	Random int
	// Valid is how many of a Forecast would be enqueued, and Random how many of them
	// have no id.
	Valid int

	// DoneAt is the latest expected start, of those that were Enqueued or are Valid.
	// Untold is how many have none: it is the earliest then, and no start before a
	// task's delay is over. The zero time when nothing can be told.
	DoneAt time.Time
	Untold int
	// Binding is the rule that DoneAt waits for. Zero when it waits for none, or that
	// cannot be told.
	Binding Binding
	// Paused is, of a Forecast, the pause of the scopes that were met which lasts longest.
	// Zero for none.
	Paused Paused
}

// Paused is the level that a pause stands at, and its expected end: the zero time where no
// clock ends it.
type Paused struct {
	Scope string
	Until time.Time
}

// heed takes a pause over that lasts longer.
func (p *Paused) heed(r *ruleSum) {
	if !r.Paused || p.Scope != "" && p.Until.IsZero() {
		return
	}
	until := time.Time{}
	if r.RetryAfter != throttle.Never {
		until = r.seen.Add(r.RetryAfter)
	}
	if p.Scope == "" || until.IsZero() || until.After(p.Until) {
		*p = Paused{r.Scope, until}
	}
}

// Binding names a rule by the level at which it counts: rule tenant of payments/acme.
type Binding struct{ Scope, Rule string }

// String returns both, "payments/acme tenant", or "the pause of payments/acme".
func (b Binding) String() string {
	if b.Rule == policy.PausedRule {
		return "the pause of " + b.Scope
	}
	return b.Scope + " " + b.Rule
}

// Total returns how many results there were.
func (s Summary) Total() int { return s.Enqueued + s.Valid + s.Duplicate + s.Invalid + s.Failed }

func (s *Summary) count(r Result) {
	if r.Random && (r.State == Enqueued || r.State == Valid) {
		s.Random++
	}
	if r.Start.After(s.DoneAt) {
		s.DoneAt = r.Start
	}
	switch r.State {
	case Enqueued:
		s.Enqueued++
	case Valid:
		s.Valid++
	case Duplicate:
		s.Duplicate++
	case Invalid:
		s.Invalid++
	default:
		s.Failed++
	}
}

// untold counts a start that is not known, and earliest what is known of it.
func (s *Summary) untold(earliest time.Time) {
	s.Untold++
	if earliest.After(s.DoneAt) {
		s.DoneAt, s.Binding = earliest, Binding{}
	}
}

// EnqueueBatch enqueues entries in their order, many to a round trip, and calls
// each (unless nil) with every result, in the same order. It reads ahead a few
// hundred entries and 2 MiB of payloads at most, however many there are, and
// sends what it has as soon as Redis has answered what went before.
//
// A bad entry is a Result, Invalid, and a taken id one, Duplicate; neither stops
// the batch. Of two entries with the same id and queue the first is enqueued, as
// long as the id is still taken when the second comes.
//
// The batch stops early, with a Summary of what was done, when ctx ends, when
// the source fails or when Redis does. What has been read by then is still
// sent, but for what comes after a failure of Redis. The error is ctx's, or
// wraps the source's or Redis's. Entries with ids of their own can all be given
// again.
//
// entries is ranged over by another goroutine, which has ended when EnqueueBatch
// returns. A source that can block for ever must itself watch ctx, and be told
// of a Result that is Failed, after which no more is asked of it.
func (c *Client) EnqueueBatch(ctx context.Context, entries iter.Seq[Entry], each func(Result)) (Summary, error) {
	belt := newConveyor()
	defer context.AfterFunc(ctx, belt.end)()
	exhausted := make(chan bool, 1)
	go func() {
		defer belt.end()
		exhausted <- c.load(ctx, belt, entries)
	}()
	sum, err := c.unload(ctx, belt, each)
	belt.end() // where unload failed, load shall stop
	if whole := <-exhausted; err == nil && !whole {
		err = ctx.Err()
	}
	return sum, err
}

// load puts every entry on the belt. It answers false when it had to stop.
func (c *Client) load(ctx context.Context, belt *conveyor, entries iter.Seq[Entry]) bool {
	for e := range entries {
		if ctx.Err() != nil {
			return false
		}
		it := c.prepare(ctx, e)
		if it.result.State == Failed && ctx.Err() != nil {
			return false
		}
		if !belt.put(it) {
			return false
		}
		if it.source {
			return true
		}
	}
	return true
}

// unload sends what is on the belt until its end or the first failure.
func (c *Client) unload(ctx context.Context, belt *conveyor, each func(Result)) (sum Summary, err error) {
	ctx = context.WithoutCancel(ctx) // what has been read is finished
	last := ""                       // the scope of the latest start, where that waits
	defer func() { sum.Binding = c.turns.binding(ctx, last) }()
	for items := belt.take(nil); items != nil; items = belt.take(items) {
		c.send(ctx, items)
		var stop error
		for _, it := range items {
			if it.source {
				return sum, fmt.Errorf("queue: batch stopped: %w", it.result.Err)
			}
			before := sum.DoneAt
			c.turns.count(&sum, it)
			if sum.DoneAt.After(before) {
				if last = ""; it.result.Waits {
					last = it.ask.Scope
				}
			}
			if each != nil {
				each(it.result)
			}
			if it.result.State == Failed && stop == nil {
				stop = it.result.Err
			}
		}
		if stop != nil {
			return sum, stop
		}
	}
	return sum, nil
}
