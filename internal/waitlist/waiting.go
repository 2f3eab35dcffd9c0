package waitlist

import (
	"context"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// Waiting iterates over the waiting tasks of a provider, in parts, so that a program finds those that no longer exist in asynq. It
// starts over after the end. It is not safe for concurrent use.
type Waiting struct {
	list     *List
	provider string
	cursor   uint64 // of the scopes
	last     bool   // no others come
	open     []openLine
}

// openLine is a line that was not read to its end.
type openLine struct {
	path, queue string
	from        string // the score to go on behind, "" to begin
}

// waitingLines is of how many lines the beginning is read at once, waitingFirst how many tasks of each, and waitingPart how many of
// one line alone: no command holds the server up for a millisecond.
const (
	waitingLines = 64
	waitingFirst = 128
	waitingPart  = 500
)

// Waiting returns an iterator over the waiting tasks of a provider, whatever the policy says of their scopes. It does no I/O.
func (l *List) Waiting(provider string) *Waiting { return &Waiting{list: l, provider: provider} }

// Next returns about most tasks, and starts over after the last one. It returns none only if none are left or there are none. Tasks
// that join or leave during the iteration may be left out, or returned twice. It costs two round trips for each 1000 scopes, one for
// each 64 lines, and one for each further 500 tasks of a line. After an error, the next call continues where this one began.
func (w *Waiting) Next(ctx context.Context, most int) (tasks []Ref, err error) {
	for len(tasks) < most && (!w.last || len(w.open) > 0) {
		if len(w.open) == 0 {
			err = w.readScopes(ctx)
		}
		if err == nil {
			tasks, err = w.readLines(ctx, tasks)
		}
		if err != nil {
			return nil, wire.Unavailable(ctx, "read the waiting tasks of", w.provider, err)
		}
	}
	if w.last && len(w.open) == 0 {
		w.cursor, w.last = 0, false
	}
	return tasks, nil
}

// readScopes opens the lines of the next scopes.
func (w *Waiting) readScopes(ctx context.Context) error {
	queues, err := w.list.queues(ctx, w.provider)
	if err != nil {
		return err
	}
	var fields []string
	if fields, w.cursor, err = w.list.scanPage(ctx, w.provider, "rules", w.cursor); err != nil {
		return err
	}
	w.last = w.cursor == 0
	for i := 0; i+1 < len(fields); i += 2 {
		for _, queue := range queues {
			w.open = append(w.open, openLine{path: fields[i], queue: queue})
		}
	}
	return nil
}

// readLines reads a part of each of some lines that were not begun, or of one that was.
func (w *Waiting) readLines(ctx context.Context, tasks []Ref) ([]Ref, error) {
	if len(w.open) == 0 {
		return tasks, nil
	}
	n, most := 1, waitingPart
	if w.open[0].from == "" {
		if n = slices.IndexFunc(w.open, func(o openLine) bool { return o.from != "" }); n < 0 {
			n = len(w.open)
		}
		if n = min(n, waitingLines); n > 1 {
			most = waitingFirst
		}
	}
	parts := make([]*redis.ZSliceCmd, n)
	err := w.list.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, line := range w.open[:n] {
			from := "-inf"
			if line.from != "" {
				from = "(" + line.from
			}
			by := &redis.ZRangeBy{Min: from, Max: "+inf", Count: int64(most)}
			parts[i] = pipe.ZRangeByScoreWithScores(ctx, leafKey(w.list.prefix(w.provider), line.queue, line.path), by)
		}
	})
	if err != nil {
		return tasks, err
	}
	var open []openLine
	for i, line := range w.open[:n] {
		part := parts[i].Val()
		for _, z := range part {
			id, _ := z.Member.(string)
			tasks = append(tasks, refOf(w.provider, line.path, line.queue, id))
		}
		if len(part) == most {
			line.from = strconv.FormatFloat(part[most-1].Score, 'f', 0, 64)
			open = append(open, line)
		}
	}
	w.open = append(open, w.open[n:]...)
	return tasks, nil
}
