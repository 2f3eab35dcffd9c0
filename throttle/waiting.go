package throttle

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// Waiting iterates over the waiters of a provider, in parts, so that the program that uses waiter ids
// can find those that no longer exist, and name them in DispatchRequest.Deleted. It starts over after
// the end. Not safe for concurrent use.
type Waiting struct {
	limiter  *Limiter
	provider string
	entry    string // the last entry that was read
	last     bool   // none comes after it
	open     []openLine
}

// openLine is a line that was not read to its end.
type openLine struct {
	scope string
	from  string // the score to go on with: the lowest, or the last that was read
}

const (
	// waitingEntries is of how many lines the beginning is read at once, and waitingFirst how
	// many of each; waitingPart is how many are read of one alone. So no command holds the
	// server up for a millisecond.
	waitingEntries = 64
	waitingFirst   = 128
	waitingPart    = 500
	lowestScore    = "-inf"
)

// Waiting returns an iterator over the waiters of a provider, whatever the policy says of their
// scopes. It does no I/O.
func (w Waitlist) Waiting(provider string) *Waiting {
	return &Waiting{limiter: w.l, provider: provider}
}

// Next returns about most waiters, and starts over after the last one. It returns none only if none
// are left or there are none. Waiters that join or leave during the iteration may be left out, or
// returned twice.
//
// Costs one round trip for each 64 queues, and one more for each further 500 waiters of a queue. The
// error wraps ErrUnavailable, or is ctx's; the next call continues where this one began.
func (w *Waiting) Next(ctx context.Context, most int) (places []WaiterRef, err error) {
	for len(places) < most && (!w.last || len(w.open) > 0) {
		if len(w.open) == 0 {
			if err = w.readEntries(ctx, waitingEntries); err != nil {
				return nil, unavailable(ctx, "read who waits for", w.provider, err)
			}
		}
		some, err := w.readLines(ctx)
		if err != nil {
			return nil, unavailable(ctx, "read who waits for", w.provider, err)
		}
		places = append(places, some...)
	}
	if w.last && len(w.open) == 0 {
		w.entry, w.last = "", false
	}
	return places, nil
}

// readEntries opens the queues of the next entries of the heap: those of its leaves.
func (w *Waiting) readEntries(ctx context.Context, most int64) error {
	ctx, cancel := context.WithTimeout(ctx, w.limiter.cfg.Timeout)
	defer cancel()
	from := "-"
	if w.entry != "" {
		from = "(" + w.entry
	}
	var read *redis.StringSliceCmd
	err := redisread.FromMaster(ctx, w.limiter.rdb, func(pipe redis.Pipeliner) error {
		read = pipe.ZRangeByLex(ctx, w.listKey(), &redis.ZRangeBy{Min: from, Max: "+", Count: most})
		return nil
	})
	if err != nil {
		return err
	}
	entries := read.Val()
	w.last = len(entries) < int(most)
	for _, entry := range entries {
		w.entry = entry
		if scope, is := leafScope(entry); is {
			w.open = append(w.open, openLine{scopeOf(w.provider, scope), lowestScore})
		}
	}
	return nil
}

// readLines reads a part of each open line that was not begun, or of the first that was.
func (w *Waiting) readLines(ctx context.Context) (places []WaiterRef, err error) {
	if len(w.open) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.limiter.cfg.Timeout)
	defer cancel()
	some, rest, most := w.open[:1], w.open[1:], waitingPart
	if w.open[0].from == lowestScore && len(rest) > 0 {
		some, rest, most = w.open, nil, waitingFirst
	}
	parts := make([]*redis.ZSliceCmd, len(some))
	err = redisread.FromMaster(ctx, w.limiter.rdb, func(pipe redis.Pipeliner) error {
		for i, line := range some {
			by := &redis.ZRangeBy{Min: line.from, Max: "+inf", Count: int64(most)}
			parts[i] = pipe.ZRangeByScoreWithScores(ctx, w.lineKey(line.scope), by)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var open []openLine
	for i, line := range some {
		part := parts[i].Val()
		for _, z := range part {
			places = append(places, readPlace(line.scope, text(z.Member)))
		}
		if from := goOnWith(part); len(part) == most {
			if from == line.from { // as many have one score
				from = "(" + from
			}
			open = append(open, openLine{line.scope, from})
		}
	}
	w.open = append(open, rest...)
	return places, nil
}

// goOnWith is the score of the last: others may have it too.
func goOnWith(part []redis.Z) string {
	if len(part) == 0 {
		return lowestScore
	}
	return strconv.FormatFloat(part[len(part)-1].Score, 'f', 0, 64)
}

func (w *Waiting) prefix() string { return keyspace(w.limiter.cfg.Prefix).provider(w.provider) }

func (w *Waiting) lineKey(scope string) string {
	return w.prefix() + scopePath(scope) + "!queue"
}

// listKey is the key that lists those who have a queue.
func (w *Waiting) listKey() string {
	return w.prefix() + "!heap"
}

// leafScope returns the path of the scope whose queue a member of the heap is: see lua/include/fairshare/tree.lua.
func leafScope(member string) (path string, is bool) {
	const rank = 23
	parts := strings.Split(member, "\x00")
	if len(parts) != 3 || parts[1] == "!" || len(parts[2]) < rank {
		return "", false
	}
	return strings.CutSuffix(parts[2][rank:], "/")
}

// Claim makes this Limiter the one that looks after a provider's waiters, among all that share its
// Redis, for the time stay. It returns true for one Limiter at a time. With again, the holder extends
// its claim before the time is over; otherwise it lapses. Costs one round trip. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) Claim(ctx context.Context, provider string, stay time.Duration, again bool) (mine bool, err error) {
	set := redis.SetArgs{Mode: "NX", TTL: stay}
	if again {
		set = redis.SetArgs{Mode: "XX", TTL: stay, Get: true}
	}
	limited, cancel := context.WithTimeout(ctx, w.l.cfg.Timeout)
	defer cancel()
	was, err := w.l.rdb.SetArgs(limited, keyspace(w.l.cfg.Prefix).provider(provider)+"!claim", w.l.slots.client, set).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return false, nil
	case err != nil:
		return false, unavailable(ctx, "claim those who wait for", provider, err)
	}
	return !again || was == w.l.slots.client, nil
}
