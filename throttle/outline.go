package throttle

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// ScopeWaiting is how much waits in a scope and the scopes below it.
type ScopeWaiting struct {
	Scope string
	// Units is the sum of the waiters' costs; of those that cost by unit, their requests.
	Units int64
	// Children is the number of names below the scope in which something waits, its own queue included.
	Children int64
	// Own is the part of Units that waits in the scope's own queue.
	Own int64
}

// outlinePart is how many nodes one command reads: it holds the server up for less than a millisecond.
const outlinePart = 1000

// WaitingIn returns how much waits in scopes of one provider, in their order, 0 for an unknown one. Costs one round trip of one
// command. The error is a *policy.ScopeError, wraps ErrUnavailable, or is ctx's.
func (w Waitlist) WaitingIn(ctx context.Context, provider string, scopes ...string) ([]ScopeWaiting, error) {
	list, fields := make([]ScopeWaiting, len(scopes)), make([]string, 2*len(scopes))
	for i, name := range scopes {
		if _, err := policy.ParseScope(name); err != nil {
			return nil, err
		}
		list[i].Scope, fields[2*i], fields[2*i+1] = name, "n"+scopePath(name), "n"+scopePath(name)+"/"
	}
	if len(scopes) == 0 {
		return nil, nil
	}
	var sums *redis.SliceCmd
	err := w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		sums = pipe.HMGet(ctx, metaKey(keyspace(w.l.cfg.Prefix).provider(provider)), fields...)
	})
	if err != nil {
		return nil, unavailable(ctx, "count who waits for", provider, err)
	}
	for i := range list {
		all, own := readNodeSum(sums.Val()[2*i]), readNodeSum(sums.Val()[2*i+1])
		list[i].Units, list[i].Children, list[i].Own = all.units, all.kids, own.units
	}
	return list, nil
}

// Outline returns the scopes of a provider in which something waits, or below which, with most first. It reads about 1000 scopes
// with each command, and at most as many as asked for; more says that there are others. Scopes in which waiters join or leave
// meanwhile may be missing. Costs one round trip for each 1000. The error wraps ErrUnavailable, or is ctx's.
func (w Waitlist) Outline(ctx context.Context, provider string, most int) (list []ScopeWaiting, more bool, err error) {
	key := metaKey(keyspace(w.l.cfg.Prefix).provider(provider))
	seen, own, cursor, read := map[string]bool{}, map[string]int64{}, uint64(0), 0
	for {
		var part *redis.ScanCmd
		if err := w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			part = pipe.HScan(ctx, key, cursor, "n*", outlinePart)
		}); err != nil {
			return nil, false, unavailable(ctx, "look at the scopes of", provider, err)
		}
		var fields []string
		fields, cursor = part.Val()
		for i := 0; i+1 < len(fields); i += 2 {
			path := strings.TrimPrefix(fields[i], "n")
			if queue, is := strings.CutSuffix(path, "/"); is { // its scope stands beside it
				own[scopeOf(provider, queue)] = readNodeSum(fields[i+1]).units
				continue
			}
			if seen[path] {
				continue
			}
			seen[path] = true
			if sum := readNodeSum(fields[i+1]); sum.units > 0 {
				list = append(list, ScopeWaiting{Scope: scopeOf(provider, path), Units: sum.units, Children: sum.kids})
			}
		}
		if read += len(fields) / 2; cursor == 0 || read >= 2*most { // each scope has two fields
			break
		}
	}
	for i := range list {
		list[i].Own = own[list[i].Scope]
	}
	slices.SortFunc(list, func(a, b ScopeWaiting) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(a.Scope, b.Scope))
	})
	more = cursor != 0 || len(list) > most
	return list[:min(most, len(list))], more, nil
}

// waitersAtOnce is of how many waiters of one queue one call tells: each costs a fifth of a millisecond.
const waitersAtOnce = 10

// QueuedWaiter is a waiter in the queue of a scope.
type QueuedWaiter struct {
	WaiterRef
	WaiterStatus
}

// Queued returns a part of the waiters in a scope's own queue, in the order of their turns: at most 64 from a place on, which is 0
// for the first. all is how many the queue has. Their expected starts and rules are those of InspectWaiter. Costs one round trip, and
// one more for each ten waiters, whatever the length of the queue: so no script keeps Redis for more than some two milliseconds. Its errors are those of Limiter.Inspect.
func (w Waitlist) Queued(ctx context.Context, scope string, from, most int) (list []QueuedWaiter, all int64, err error) {
	p, err := w.l.scopes.of(scope)
	if err != nil {
		return nil, 0, err
	}
	key, _ := p.queue[0].(string)
	var count *redis.IntCmd
	var part *redis.StringSliceCmd
	most = min(most, inspectedAtOnce)
	err = w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		count = pipe.ZCard(ctx, key)
		part = pipe.ZRange(ctx, key, int64(from), int64(from+most-1))
	})
	if err != nil {
		return nil, 0, unavailable(ctx, "look at the queue of", scope, err)
	}
	tickets := part.Val()
	if len(tickets) == 0 {
		return nil, count.Val(), nil
	}
	for some := range slices.Chunk(tickets, waitersAtOnce) {
		page, err := w.l.inspect(ctx, p, slices.Repeat([]string{scope}, len(some)), some, "", "")
		if err != nil {
			return nil, 0, unavailable(ctx, "look at the queue of", scope, err)
		}
		for i, ticket := range some {
			line := page.lines[i]
			if line.ahead < 0 {
				continue // it has started meanwhile
			}
			list = append(list, QueuedWaiter{readPlace(scope, ticket), WaiterStatus{
				At: page.at, Waits: true, Ahead: line.ahead, Expected: line.start, Binding: line.binding, Paused: line.paused,
			}})
		}
	}
	return list, count.Val(), nil
}

// LastQueued returns the last waiter in the own queue of each of some scopes, 64 at most and all of one provider, in their order. Its
// expected start is that of InspectWaiter, and so about when all that wait in the queue now will have started. It does not wait in an empty
// queue; of a scope that no rule matches its start is unknown. Costs one round trip, and one more if tasks wait for runs to end. Its errors
// are those of Limiter.Inspect.
func (w Waitlist) LastQueued(ctx context.Context, scopes ...string) ([]WaiterStatus, error) {
	list := make([]WaiterStatus, len(scopes))
	i := slices.IndexFunc(scopes, func(scope string) bool { _, err := w.l.scopes.of(scope); return err == nil })
	if i < 0 {
		return list, nil
	}
	p, err := w.l.scopes.of(scopes[i])
	if err != nil {
		return nil, err
	}
	page, err := w.l.inspect(ctx, p, scopes, slices.Repeat([]string{"-"}, len(scopes)), "", "")
	if err != nil {
		return nil, unavailable(ctx, "look at the queues of", scopes[i], err)
	}
	for i, line := range page.lines {
		list[i] = WaiterStatus{At: page.at, Waits: line.ahead >= 0, Ahead: line.ahead, Expected: line.start, Binding: line.binding, Paused: line.paused}
	}
	return list, nil
}
