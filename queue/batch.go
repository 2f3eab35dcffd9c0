package queue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/headway-go/headway/throttle/policy"
)

// Summary counts the results of a batch.
type Summary struct {
	Enqueued  int
	Duplicate int
	Invalid   int
	Failed    int
	// Archived is how many of the Duplicate tasks have failed for good: see Result.Archived.
	Archived int
	// Random is how many enqueued tasks got a random id from this package. Running the batch again would
	// enqueue them a second time.
	Random int
	// Valid is how many tasks of a Forecast would be enqueued. Random is how many of them have no id.
	Valid int

	// Expiring is how many tasks of a Forecast have a deadline or a longest wait that ends before their expected start.
	Expiring int

	// DoneAt is the latest expected start of the Enqueued or Valid tasks; zero if no start is known.
	// UnknownStarts is how many of them have no known start: DoneAt is then the earliest possible.
	DoneAt        time.Time
	UnknownStarts int
	// DoneFrom and DoneTo are the bounds of a DoneAt that rests on how long runs take, for a Forecast and
	// with ClientConfig.Inspect.
	DoneFrom, DoneTo time.Time
	// Binding is the rule that determines DoneAt; zero if none does, or if it is not known.
	Binding Binding
	// Paused is, for a Forecast, the longest pause among the batch's scopes; zero if none is paused.
	Paused Paused
}

// Paused is the level at which a scope is paused, by the limits or its API, and the expected end of the
// pause: zero if no clock ends it.
type Paused struct {
	Scope string
	Until time.Time
}

// extend keeps the longer of two pauses. The zero until is for ever.
func (p *Paused) extend(scope string, until time.Time) {
	if p.Scope == "" || !p.Until.IsZero() && (until.IsZero() || until.After(p.Until)) {
		*p = Paused{scope, until}
	}
}

// Reason is what the start of a task waits for. worker inspect uses the same words.
type Reason string

// The reasons.
const (
	ReasonRule      Reason = "rule"      // units of a rule
	ReasonRun       Reason = "run"       // a run that ends, under a rule of concurrency
	ReasonMember    Reason = "member"    // the first member of a pool with room
	ReasonSuspended Reason = "suspended" // a rule of limit 0
	ReasonPaused    Reason = "paused"    // a pause of the limits
	ReasonUpstream  Reason = "upstream"  // its API asked not to be called
	ReasonHours     Reason = "hours"     // other rules apply by then
	ReasonDelay     Reason = "delay"     // its own delay
)

// Binding names a rule by the level at which it counts: rule tenant of payments/acme. For a pause that an
// API asked for, it has only the scope.
type Binding struct{ Scope, Rule string }

// String returns both, "payments/acme tenant", or "the pause of payments/acme", or "a member of github".
func (b Binding) String() string {
	if b.Rule == policy.MembersRule {
		return "a member of " + b.Scope
	}
	if b.Rule == policy.PausedRule || b.Rule == "" {
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
		if r.Archived {
			s.Archived++
		}
	case Invalid:
		s.Invalid++
	default:
		s.Failed++
	}
}

// unknownStart counts a task whose start is not known. earliest is a lower bound of the start.
func (s *Summary) unknownStart(earliest time.Time) {
	s.UnknownStarts++
	if earliest.After(s.DoneAt) {
		s.DoneAt, s.Binding = earliest, Binding{}
	}
}

// EnqueueBatch enqueues entries in order, many to a round trip, and calls each (unless nil) with every
// result, in the same order. It reads ahead at most a few hundred entries and 2 MiB of payloads, and
// sends what it has read as soon as Redis has answered the previous send.
//
// A bad entry yields an Invalid Result, and an id that is taken, also by an earlier entry, a Duplicate;
// neither stops the batch. It stops early, with a Summary of what was done, if ctx ends, or if the source or
// Redis fails. Entries that were read by then are still sent, unless Redis failed. The error is ctx's, or
// wraps the source's or Redis's. It is safe to pass entries with ids of their own again.
//
// Another goroutine ranges over entries, and has ended when EnqueueBatch returns: a source that can block
// must watch ctx, and be unblocked after a Failed Result.
func (c *Client) EnqueueBatch(ctx context.Context, entries iter.Seq[Entry], each func(Result)) (Summary, error) {
	b := &batch{client: c, items: make(chan *item, maxItems), ahead: semaphore.NewWeighted(maxBytes)}
	reading, stop := context.WithCancel(ctx)
	whole := false
	go func() {
		defer close(b.items)
		whole = b.read(reading, entries)
	}()
	sum, err := b.send(ctx, each)
	stop() // where sending failed
	for it := range b.items {
		it.drop()
	}
	if err == nil && !whole {
		err = ctx.Err()
	}
	return sum, err
}

// These bound the items between reading and sending, and with them a batch's memory and the length of a pipeline.
const (
	maxItems = 512
	maxBytes = 2 << 20
)

// batch is one EnqueueBatch: a goroutine that reads, and one that sends.
type batch struct {
	client *Client
	items  chan *item
	ahead  *semaphore.Weighted // bytes of payloads
}

// read reads every entry. It returns false if it had to stop early.
func (b *batch) read(ctx context.Context, entries iter.Seq[Entry]) bool {
	for e := range entries {
		it := b.client.prepare(ctx, e)
		if b.ahead.Acquire(ctx, it.size()) != nil {
			it.drop()
			return false
		}
		b.items <- it // which EnqueueBatch receives, also where it has stopped sending
		if it.source {
			return true
		}
	}
	return true
}

func (it *item) size() int64 {
	if it.task == nil {
		return 0
	}
	return min(int64(len(it.task.Payload())), maxBytes)
}

// gathered returns the items that were read, in order: all that there are, so that a slow source is sent
// at once and a fast one in long pipelines. It waits for the first, and returns none at the end.
func (b *batch) gathered(items []*item) []*item {
	for it := range b.items {
		b.ahead.Release(it.size())
		if items = append(items, it); len(b.items) == 0 || len(items) == maxItems {
			break
		}
	}
	return items
}

// send sends the items until their end or the first failure.
func (b *batch) send(ctx context.Context, each func(Result)) (sum Summary, err error) {
	c, unknown := b.client, unknownStarts{}
	last := ""                            // the scope of the latest start, where that waits
	sending := context.WithoutCancel(ctx) // entries that were read are still sent
	defer func() {
		sum.Binding = c.binding(sending, last)
		c.inspectUnknown(ctx, &sum, unknown)
	}()
	for items := b.gathered(nil); len(items) > 0; items = b.gathered(items[:0]) {
		c.send(sending, items)
		for _, it := range items {
			it.report()
		}
		for _, it := range items {
			r := it.result
			if it.source {
				return sum, fmt.Errorf("queue: batch stopped: %w", r.Err)
			}
			before := sum.DoneAt
			c.count(&sum, it)
			if c.cfg.Inspect && r.Waits && r.Start.IsZero() {
				unknown.add(it.waiter)
			}
			if sum.DoneAt.After(before) {
				if last = ""; r.Waits {
					last = it.waiter.Scope
				}
			}
			if each != nil {
				each(r)
			}
			if r.State == Failed && err == nil {
				err = r.Err
			}
		}
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

var errNotSent = errors.New("queue: the batch ended before this task was sent")

// drop reports an item that is not sent.
func (it *item) drop() {
	if it.result.Err == nil {
		it.refuse(Failed, errNotSent)
	}
	it.report()
}
