package throttle

import (
	"cmp"
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// ScopeQueue is the queue of one scope, without those of the scopes below it.
type ScopeQueue struct {
	Scope string
	// QueueStats are those of the queue. At and Binding are zero, and NextStart means nothing, if no rule
	// matches the scope.
	QueueStats
	// Unmatched says that no rule matches the scope.
	Unmatched bool
	// First is the first waiter of the queue.
	First WaiterRef
}

// maxSurveyed is the most queues of a provider that are counted.
const maxSurveyed = 10_000

// CountQueues counts the waiters in each queue of a provider whose scope is wanted, fullest first; a
// nil wanted means all. If a provider has more than 10,000 queues, it counts those whose scopes come
// first in the tree, and more is true. Only Waiting and Queues of each result have a meaning.
//
// Costs a round trip for each 64 queues of the provider, and one more for each 500. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) CountQueues(ctx context.Context, provider string, wanted func(scope string) bool) (all []ScopeQueue, more bool, err error) {
	all, more, err = w.survey(ctx, provider)
	if err != nil {
		return nil, false, unavailable(ctx, "count who waits for", provider, err)
	}
	if wanted != nil {
		all = slices.DeleteFunc(all, func(q ScopeQueue) bool { return !wanted(q.Scope) })
	}
	slices.SortFunc(all, func(a, b ScopeQueue) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Scope, b.Scope))
	})
	return all, more, nil
}

// Fullest returns the queues of a provider with the most waiters, fullest first, at most as many as
// asked for. It also returns how many queues were counted; see CountQueues.
//
// Costs what CountQueues does, and two round trips for each 64 of those returned. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) Fullest(ctx context.Context, provider string, most int, wanted func(scope string) bool) (list []ScopeQueue, counted int, more bool, err error) {
	all, more, err := w.CountQueues(ctx, provider, wanted)
	if err != nil {
		return nil, 0, false, err
	}
	list = all[:min(most, len(all))]
	for some := range slices.Chunk(list, inspectedAtOnce) {
		if err := w.first(ctx, provider, some); err != nil {
			return nil, 0, false, unavailable(ctx, "look at the queues of", provider, err)
		}
	}
	return list, len(all), more, nil
}

// survey counts the waiters in each queue.
func (w Waitlist) survey(ctx context.Context, provider string) (all []ScopeQueue, more bool, err error) {
	reader, seen := w.Waiting(provider), map[string]bool{}
	for !reader.last {
		if len(all) >= maxSurveyed {
			return all, true, nil
		}
		var scopes []string
		for len(scopes) < waitingPart && !reader.last {
			reader.open = reader.open[:0]
			if err := reader.readEntries(ctx, waitingEntries); err != nil {
				return nil, false, err
			}
			for _, line := range reader.open {
				if !seen[line.scope] {
					seen[line.scope] = true
					scopes = append(scopes, line.scope)
				}
			}
		}
		counts := make([]*redis.IntCmd, len(scopes))
		err := w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			for i, scope := range scopes {
				counts[i] = pipe.ZCard(ctx, reader.lineKey(scope))
			}
		})
		if err != nil {
			return nil, false, err
		}
		for i, scope := range scopes {
			if n := counts[i].Val(); n > 0 {
				all = append(all, ScopeQueue{Scope: scope, QueueStats: QueueStats{Waiting: n, Queues: 1, NextStart: unknowable}})
			}
		}
	}
	return all, false, nil
}

// first reads the first waiter of each queue, and when it starts.
func (w Waitlist) first(ctx context.Context, provider string, some []ScopeQueue) error {
	reader, heads := w.Waiting(provider), make([]*redis.StringSliceCmd, len(some))
	err := w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, q := range some {
			heads[i] = pipe.ZRange(ctx, reader.lineKey(q.Scope), 0, 0)
		}
	})
	if err != nil {
		return err
	}
	var p *compiledScope
	var known []string
	for i := range some {
		if head := heads[i].Val(); len(head) > 0 {
			some[i].First = readPlace(some[i].Scope, head[0])
		}
		plan, err := w.l.scopes.of(some[i].Scope)
		if some[i].Unmatched = err != nil; err == nil {
			p, known = plan, append(known, some[i].Scope)
		}
	}
	if p == nil {
		return nil
	}
	page, err := w.l.inspect(ctx, p, known, make([]string, len(known)), "", "")
	if err != nil {
		return err
	}
	for i := range some {
		if at := slices.Index(known, some[i].Scope); at >= 0 {
			line := page.lines[at]
			some[i].At, some[i].Dispatched, some[i].NextStart = page.at, line.released, line.start
			some[i].Binding, some[i].Paused = line.binding, line.paused
		}
	}
	return nil
}

// read sends commands that change nothing, in one round trip.
func (w Waitlist) read(ctx context.Context, commands func(context.Context, redis.Pipeliner)) error {
	ctx, cancel := context.WithTimeout(ctx, w.l.cfg.Timeout)
	defer cancel()
	return redisread.FromMaster(ctx, w.l.rdb, func(pipe redis.Pipeliner) error {
		commands(ctx, pipe)
		return nil
	})
}
