package waitlist

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// ScopeWaiting is how much waits in a scope and the scopes below it.
type ScopeWaiting struct {
	Scope string
	// Tasks is the number of waiting tasks, and Own the part of them that waits in the scope's own lines.
	Tasks, Own int64
	// Children is the number of names below the scope in which something waits. WaitingIn counts those that take turns instead:
	// without those that a rule of their own holds up, with the scope itself, and one more for each further asynq queue.
	Children int64
}

// ScopeQueue is the lines of one scope, without those of the scopes below it.
type ScopeQueue struct {
	Scope string
	Own   int64 // how many tasks wait
	// First is the first task of the line of its asynq queue with the most tasks. Only Fullest sets it and what follows.
	First       Ref
	FirstStatus WaiterStatus
	// Dispatched is how many tasks of the scope, and of those below it, were granted a start and have not come yet.
	Dispatched int64
	// Unmatched says that no rule matches the scope, so that its first task has no status.
	Unmatched bool

	queue string // with the most tasks
}

const (
	// scanPart is how many fields of a hash, or lines, one round trip reads: less than a millisecond of the server's.
	scanPart = 1000
	// countedScopes is the most scopes of a provider that are counted.
	countedScopes = 10_000
)

// queues returns the asynq queues of which tasks of a provider wait or have waited, by name.
func (l *List) queues(ctx context.Context, provider string) (queues []string, err error) {
	var fields *redis.StringSliceCmd
	if err := l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { fields = pipe.HKeys(ctx, l.prefix(provider)+"queues") }); err != nil {
		return nil, wire.Unavailable(ctx, "look at the lines of", provider, err)
	}
	for _, field := range fields.Val() {
		if field != "*" && field != "#" {
			queues = append(queues, wire.Unescape(field))
		}
	}
	slices.Sort(queues)
	return queues, nil
}

// counted is how many tasks a scope has in the line of each asynq queue.
type counted struct {
	own    int64
	byLine []int64
}

// counts counts the tasks in the own lines of scopes. It also returns the asynq queues.
func (l *List) counts(ctx context.Context, provider string, paths ...string) (queues []string, out []counted, err error) {
	if queues, err = l.queues(ctx, provider); err != nil {
		return nil, nil, err
	}
	out = make([]counted, len(paths))
	cmds := make([]*redis.IntCmd, len(queues)*len(paths))
	for from := 0; from < len(cmds); from += scanPart {
		err := l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			for i := from; i < min(from+scanPart, len(cmds)); i++ {
				cmds[i] = pipe.ZCard(ctx, leafKey(l.prefix(provider), queues[i%len(queues)], paths[i/len(queues)]))
			}
		})
		if err != nil {
			return nil, nil, wire.Unavailable(ctx, "count the waiting tasks of", provider, err)
		}
	}
	for i, cmd := range cmds {
		of := &out[i/len(queues)]
		of.own, of.byLine = of.own+cmd.Val(), append(of.byLine, cmd.Val())
	}
	return queues, out, nil
}

// scan reads fields of a hash of a provider, until it has so many or all; more says that there are others.
func (l *List) scan(ctx context.Context, provider, hash string, most int) (fields map[string]string, more bool, err error) {
	fields = map[string]string{}
	for cursor := uint64(0); ; {
		var list []string
		if list, cursor, err = l.scanPage(ctx, provider, hash, cursor); err != nil {
			return nil, false, wire.Unavailable(ctx, "look at the scopes of", provider, err)
		}
		for two := range slices.Chunk(list, 2) {
			fields[two[0]] = two[1]
		}
		if cursor == 0 || len(fields) >= most {
			return fields, cursor != 0, nil
		}
	}
}

// scanPage reads the next fields of a hash, each with its value behind it.
func (l *List) scanPage(ctx context.Context, provider, hash string, from uint64) (list []string, next uint64, err error) {
	var part *redis.ScanCmd
	err = l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		part = pipe.HScan(ctx, l.prefix(provider)+hash, from, "", scanPart)
	})
	if err != nil {
		return nil, 0, err
	}
	list, next = part.Val()
	return list, next, nil
}

// WaitingIn returns how much waits in scopes of one provider, in their order, 0 for an unknown scope. It costs three round trips, of
// two commands and two for each scope and asynq queue.
func (l *List) WaitingIn(ctx context.Context, provider string, scopes ...string) ([]ScopeWaiting, error) {
	if len(scopes) == 0 {
		return nil, nil
	}
	paths := make([]string, len(scopes))
	for i, scope := range scopes {
		paths[i] = wire.Path(scope)
	}
	queues, own, err := l.counts(ctx, provider, paths...)
	if err != nil {
		return nil, err
	}
	var below *redis.SliceCmd
	ready := make([]*redis.IntCmd, 0, len(queues)*len(paths))
	if err := l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		ready = ready[:0] // a call may be sent again
		below = pipe.HMGet(ctx, l.prefix(provider)+"units", paths...)
		for _, path := range paths {
			for _, queue := range queues {
				ready = append(ready, pipe.ZCard(ctx, l.prefix(provider)+"ready:"+wire.Escape(queue)+":"+path))
			}
		}
	}); err != nil {
		return nil, wire.Unavailable(ctx, "count the waiting tasks of", provider, err)
	}
	list := make([]ScopeWaiting, len(scopes))
	for i, scope := range scopes {
		text, _ := below.Val()[i].(string)
		list[i] = ScopeWaiting{Scope: scope, Tasks: own[i].own + number(text), Own: own[i].own}
		for _, cmd := range ready[i*len(queues) : (i+1)*len(queues)] {
			list[i].Children += cmd.Val()
		}
	}
	return list, nil
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return max(0, n)
}

// Count counts the tasks in the own lines of each scope of a provider that is wanted, fullest first; a nil wanted means all. It
// counts 10,000 scopes at most, and more says that there are others. It costs a round trip for each 1000 scopes, and one for each
// 1000 lines.
func (l *List) Count(ctx context.Context, provider string, wanted func(scope string) bool) (list []ScopeQueue, more bool, err error) {
	texts, more, err := l.scan(ctx, provider, "rules", countedScopes)
	if err != nil {
		return nil, false, err
	}
	var paths []string
	for path := range texts {
		if wanted == nil || wanted(wire.ScopeOf(provider, path)) {
			paths = append(paths, path)
		}
	}
	queues, counts, err := l.counts(ctx, provider, paths...)
	if err != nil {
		return nil, false, err
	}
	for i, c := range counts {
		if c.own > 0 {
			fullest := queues[slices.Index(c.byLine, slices.Max(c.byLine))]
			list = append(list, ScopeQueue{Scope: wire.ScopeOf(provider, paths[i]), Own: c.own, queue: fullest})
		}
	}
	slices.SortFunc(list, func(a, b ScopeQueue) int { return cmp.Or(cmp.Compare(b.Own, a.Own), cmp.Compare(a.Scope, b.Scope)) })
	return list, more, nil
}

// Fullest returns the scopes of a provider with the most tasks in their own lines, fullest first, at most as many as asked for, with
// the first task of each. It also returns how many scopes were counted; see Count. It costs what Count does, and two round trips for
// each 64 of those returned.
func (l *List) Fullest(ctx context.Context, provider string, most int, wanted func(scope string) bool) (list []ScopeQueue, counted int, more bool, err error) {
	all, more, err := l.Count(ctx, provider, wanted)
	if err != nil {
		return nil, 0, false, err
	}
	list = all[:min(most, len(all))]
	for some := range slices.Chunk(list, inspectBatch) {
		if err := l.inspectFirst(ctx, provider, some); err != nil {
			return nil, 0, false, err
		}
	}
	return list, len(all), more, nil
}

// Heads returns the first tasks of all lines of some scopes of a provider. It costs two round trips, of one command and one for each
// scope and asynq queue.
func (l *List) Heads(ctx context.Context, provider string, scopes ...string) (heads []Ref, err error) {
	queues, err := l.queues(ctx, provider)
	if err != nil || len(queues) == 0 || len(scopes) == 0 {
		return nil, err
	}
	var lines []ScopeQueue
	for _, scope := range scopes {
		for _, queue := range queues {
			lines = append(lines, ScopeQueue{Scope: scope, queue: queue})
		}
	}
	err = l.ReadFirst(ctx, provider, lines)
	for _, q := range lines {
		if q.First.ID != "" {
			heads = append(heads, q.First)
		}
	}
	return heads, err
}

// ReadFirst sets the first task of each of some scopes that were counted. It costs one round trip.
func (l *List) ReadFirst(ctx context.Context, provider string, some []ScopeQueue) error {
	if len(some) == 0 {
		return nil
	}
	heads := make([]*redis.StringSliceCmd, len(some))
	err := l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, q := range some {
			heads[i] = pipe.ZRange(ctx, leafKey(l.prefix(provider), q.queue, wire.Path(q.Scope)), 0, 0)
		}
	})
	if err != nil {
		return wire.Unavailable(ctx, "look at the lines of", provider, err)
	}
	for i := range some {
		if head := heads[i].Val(); len(head) > 0 {
			some[i].First = Ref{some[i].Scope, some[i].queue, head[0]}
		}
	}
	return nil
}

// inspectFirst reads the first task of each scope, and its state.
func (l *List) inspectFirst(ctx context.Context, provider string, some []ScopeQueue) error {
	if err := l.ReadFirst(ctx, provider, some); err != nil {
		return err
	}
	var asks []ask
	var of []int
	for i := range some {
		s, err := l.cfg.Scopes.Of(some[i].Scope)
		if some[i].Unmatched = err != nil; err == nil {
			asks, of = append(asks, ask{scope: s, queue: some[i].queue}), append(of, i)
		}
	}
	if len(asks) == 0 {
		return nil
	}
	_, list, err := l.inspect(ctx, provider, asks)
	if err != nil {
		return wire.Unavailable(ctx, "look at the lines of", provider, err)
	}
	for k, one := range list {
		some[of[k]].FirstStatus, some[of[k]].Dispatched = one.WaiterStatus, one.flying
	}
	return nil
}

// Outline returns the scopes of a provider in which something waits, or below which, with most first, at most as many as asked for:
// about so many are read, and more says that there are others. Scopes in which tasks join or leave meanwhile may be missing. It costs
// two round trips for each 1000 scopes, and one for each 1000 lines.
func (l *List) Outline(ctx context.Context, provider string, most int) (list []ScopeWaiting, more bool, err error) {
	texts, more, err := l.scan(ctx, provider, "rules", most)
	if err != nil {
		return nil, false, err
	}
	below, others, err := l.scan(ctx, provider, "units", most)
	if err != nil {
		return nil, false, err
	}
	paths := slices.Collect(maps.Keys(texts))
	_, counts, err := l.counts(ctx, provider, paths...)
	if err != nil {
		return nil, false, err
	}
	byPath := map[string]*ScopeWaiting{}
	for path, text := range below {
		byPath[path] = &ScopeWaiting{Tasks: number(text)}
	}
	for i, path := range paths {
		if byPath[path] == nil {
			byPath[path] = &ScopeWaiting{}
		}
		byPath[path].Own = counts[i].own
		byPath[path].Tasks += counts[i].own
	}
	for path, one := range byPath {
		if above := byPath[path[:max(0, strings.LastIndexByte(path, '/'))]]; path != "" && one.Tasks > 0 && above != nil {
			above.Children++
		}
	}
	for path, one := range byPath {
		if one.Scope = wire.ScopeOf(provider, path); one.Tasks > 0 {
			list = append(list, *one)
		}
	}
	slices.SortFunc(list, func(a, b ScopeWaiting) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Scope, b.Scope))
	})
	return list[:min(most, len(list))], more || others || len(list) > most, nil
}
