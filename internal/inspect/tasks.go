package inspect

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
)

// Tasks iterates over the waiting tasks of a provider, in parts, so that a program finds those that no longer exist in asynq. It
// starts over after the end. It is not safe for concurrent use.
type Tasks struct {
	Reader
	provider string
	cursor   uint64 // of the scopes
	last     bool   // all scopes were read
	open     []openLine
}

// openLine is a line that was not read to its end.
type openLine struct {
	path, queue string
	from        string // the least score of those to read
}

// One round trip reads a part of each of so many lines, or a longer part of the only line that is open. No command takes the
// server a millisecond.
const (
	linesAtOnce = 64
	linePart    = 128
	onlyPart    = 500
)

// Tasks returns an iterator over the waiting tasks of a provider, whatever the policy says of their scopes. It does no I/O.
func (r Reader) Tasks(provider string) *Tasks { return &Tasks{Reader: r, provider: provider} }

// Next returns about most tasks, and starts over after the last one. It returns none only if none are left or there are none.
// Tasks that join or leave during the iteration may be left out, or returned twice. It costs two round trips for each 1000
// scopes, one for each 64 lines, and more for long lines: one for each 500 tasks of the longest. After an error, the next call
// continues where this one began.
func (t *Tasks) Next(ctx context.Context, most int) (tasks []waitlist.Ref, err error) {
	for len(tasks) < most && (!t.last || len(t.open) > 0) {
		if len(t.open) == 0 {
			err = t.readScopes(ctx)
		}
		if err == nil {
			tasks, err = t.readLines(ctx, tasks)
		}
		if err != nil {
			return nil, err
		}
	}
	if t.last && len(t.open) == 0 {
		t.cursor, t.last = 0, false
	}
	return tasks, nil
}

// AtStart reports whether the next call of Next begins with the first task.
func (t *Tasks) AtStart() bool { return t.cursor == 0 && len(t.open) == 0 }

// readScopes opens the lines of the next scopes.
func (t *Tasks) readScopes(ctx context.Context) error {
	queues, err := t.queues(ctx, t.provider)
	if err != nil {
		return err
	}
	fields, cursor, err := t.list.Scan(ctx, t.provider, "rules", t.cursor)
	if err != nil {
		return err
	}
	t.cursor, t.last = cursor, cursor == 0
	for i := 0; i < len(fields); i += 2 { // each path has its rules behind it
		for _, queue := range queues {
			t.open = append(t.open, openLine{fields[i], queue, "-inf"})
		}
	}
	return nil
}

// readLines reads the next part of each of some lines.
func (t *Tasks) readLines(ctx context.Context, tasks []waitlist.Ref) ([]waitlist.Ref, error) {
	some, most := t.open[:min(linesAtOnce, len(t.open))], linePart
	if len(some) == 1 {
		most = onlyPart
	}
	parts := make([]*redis.ZSliceCmd, len(some))
	err := t.list.Read(ctx, t.provider, func(pipe redis.Pipeliner) {
		for i, line := range some {
			key := wire.LineKey(t.list.Prefix(t.provider), line.queue, line.path)
			parts[i] = pipe.ZRangeByScoreWithScores(ctx, key, &redis.ZRangeBy{Min: line.from, Max: "+inf", Count: int64(most)})
		}
	})
	if err != nil {
		return tasks, err
	}
	var open []openLine
	for i, line := range some {
		part := parts[i].Val()
		for _, z := range part {
			id, _ := z.Member.(string)
			tasks = append(tasks, waitlist.Ref{Scope: wire.ScopeOf(t.provider, line.path), Queue: line.queue, ID: id})
		}
		if len(part) == most {
			line.from = "(" + strconv.FormatFloat(part[most-1].Score, 'f', 0, 64)
			open = append(open, line)
		}
	}
	t.open = append(open, t.open[len(some):]...)
	return tasks, nil
}
