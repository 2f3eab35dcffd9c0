package throttle

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The bounds of OldestWait: how many scans of outlinePart nodes, and how many of the fullest queues.
const (
	oldestScans = 2
	oldestHeads = 8
)

// OldestWaitCost is the most Redis commands that OldestWait sends.
const OldestWaitCost = oldestScans + oldestHeads + 1

// OldestWait returns about when the longest wait for a provider began, by the server's clock: that of the first waiters of its 8 fullest
// queues, among about its first 1000. Of a waiter that came back to the front of its queue it is the start that it could not use, so it has
// waited for longer. It is zero if nothing waits, or if no place of these waiters is a time, as among lanes. A waiter of a lower priority
// than others in its queue may have waited for longer. Costs at most OldestWaitCost commands, in three round trips, however much waits.
// The error wraps ErrUnavailable, or is ctx's.
func (w Waitlist) OldestWait(ctx context.Context, provider string) (since time.Time, err error) {
	queues, err := w.fullestOf(ctx, provider)
	if err != nil || len(queues) == 0 {
		return time.Time{}, err
	}
	var clock *redis.TimeCmd
	heads := make([]*redis.ZSliceCmd, len(queues))
	err = w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		clock = pipe.Time(ctx)
		for i, scope := range queues {
			heads[i] = pipe.ZRangeWithScores(ctx, w.Waiting(provider).lineKey(scope), 0, 0)
		}
	})
	if err != nil {
		return time.Time{}, unavailable(ctx, "look at the queues of", provider, err)
	}
	now := clock.Val()
	if fixed := w.l.clock(); fixed != "" {
		now = time.UnixMicro(sum(fixed))
	}
	for _, head := range heads {
		if len(head.Val()) == 0 {
			continue // it was emptied meanwhile
		}
		if at := waitsSince(head.Val()[0].Score, now); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since, nil
}

// waitsSince is joined, or, of a waiter that came back to the front of its queue, the start that it could not use; see front_place in
// lua/include/fairshare/lanes.lua.
func waitsSince(score float64, now time.Time) time.Time {
	const band, front, latest = int64(1) << 32, int64(1) << 30, int64(12 * 24 * time.Hour / time.Millisecond)
	place := ((int64(score) % band) + band) % band
	if place >= front {
		return joined(score, now)
	}
	age := ((now.UnixMilli()-place)%front + front) % front
	if age > latest { // it is yet to come
		return time.Time{}
	}
	return now.Add(-time.Duration(age) * time.Millisecond)
}

// fullestOf returns the scopes of a provider's fullest queues, as far as a few scans find them.
func (w Waitlist) fullestOf(ctx context.Context, provider string) ([]string, error) {
	type queue struct {
		scope string
		units int64
	}
	key, cursor, all := metaKey(keyspace(w.l.cfg.Prefix).provider(provider)), uint64(0), []queue(nil)
	for range oldestScans {
		var part *redis.ScanCmd
		if err := w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			part = pipe.HScan(ctx, key, cursor, "n*/", outlinePart)
		}); err != nil {
			return nil, unavailable(ctx, "look at the queues of", provider, err)
		}
		var fields []string
		fields, cursor = part.Val()
		for i := 0; i+1 < len(fields); i += 2 {
			path := strings.TrimSuffix(strings.TrimPrefix(fields[i], "n"), "/")
			if sum := readNodeSum(fields[i+1]); sum.units > 0 {
				all = append(all, queue{scopeOf(provider, path), sum.units})
			}
		}
		if cursor == 0 {
			break
		}
	}
	slices.SortFunc(all, func(a, b queue) int { return cmp.Or(cmp.Compare(b.units, a.units), cmp.Compare(a.scope, b.scope)) })
	var scopes []string
	for _, q := range all {
		if !slices.Contains(scopes, q.scope) && len(scopes) < oldestHeads { // a scan may return a node twice
			scopes = append(scopes, q.scope)
		}
	}
	return scopes, nil
}
