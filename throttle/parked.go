package throttle

import (
	"context"
	"math"
	"strings"
)

// Parked returns up to n parked waiters of a provider, from an offset on: higher priorities first, and
// among those of one priority in the order in which they asked. Some results have a group as their ID,
// or none: they stand for the last place in a scope of that group, or of waiters without a group. Name
// them in DispatchRequest.Unpark like all others. Costs one round trip. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) Parked(ctx context.Context, provider string, offset, n int) ([]WaiterRef, error) {
	places, err := w.l.readParked(ctx, provider, offset, n)
	if err != nil && w.l.repaired(ctx, provider, nil, err) {
		places, err = w.l.readParked(ctx, provider, offset, n)
	}
	if err != nil {
		return nil, unavailable(ctx, "ask who is parked of", provider, err)
	}
	return places, nil
}

func (l *Limiter) readParked(ctx context.Context, provider string, offset, n int) ([]WaiterRef, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	key := parkedKey(keyspace(l.cfg.Prefix).provider(provider))
	list, err := l.rdb.ZRangeWithScores(ctx, key, int64(offset), int64(offset+n-1)).Result()
	if err != nil {
		return nil, err
	}
	places := make([]WaiterRef, len(list))
	for i, z := range list {
		scope, ticket, _ := strings.Cut(text(z.Member), "\x00")
		if !strings.Contains(ticket, ":") || math.Abs(z.Score) > maxScore {
			return nil, errDamaged
		}
		places[i] = readPlace(scopeOf(provider, scope), ticket)
	}
	return places, nil
}

// maxScore is the highest score of a place in a queue; see lua/include/fairshare/tasks.lua.
const maxScore = 1 << 52

// parkedMember is under which name one is parked.
func parkedMember(p WaiterRef) string { return scopePath(p.Scope) + "\x00" + p.ticket() }
