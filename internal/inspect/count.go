package inspect

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
)

// ScopeCount counts the tasks that wait in a scope and the scopes below it.
type ScopeCount struct {
	Scope string
	Tasks int64 // that wait
	Own   int64 // the part of them in the scope's own lines
	// Children is how many names below the scope take turns, in each asynq queue, and the scope itself if it does, without those that a
	// rule of their own holds up. Only WaitingIn sets it.
	Children int64
}

// ScopeQueue is the lines of one scope, without those of the scopes below it.
type ScopeQueue struct {
	Scope string
	Own   int64 // how many tasks wait
	// First is the first task of the line with the most tasks, once ReadFirst has read it. It is zero if that line was emptied meanwhile.
	First waitlist.Ref
	// FirstStatus is the status of First, once InspectFirst has read it. Unmatched says instead that no rule matches the scope.
	FirstStatus WaiterStatus
	Unmatched   bool

	queue string // of the line with the most tasks
}

// WaitingIn counts what waits in scopes of one provider, in their order, 0 for an unknown scope. It costs three round trips, of
// two commands and two for each scope and asynq queue.
func (r Reader) WaitingIn(ctx context.Context, provider string, scopes ...string) ([]ScopeCount, error) {
	if len(scopes) == 0 {
		return nil, nil
	}
	paths := make([]string, len(scopes))
	for i, scope := range scopes {
		paths[i] = wire.Path(scope)
	}
	queues, own, err := r.lineLengths(ctx, provider, paths...)
	if err != nil {
		return nil, err
	}
	prefix := r.list.Prefix(provider)
	var below *redis.SliceCmd
	ready := make([]*redis.IntCmd, len(queues)*len(paths))
	if err := r.list.Read(ctx, provider, func(pipe redis.Pipeliner) {
		below = pipe.HMGet(ctx, prefix+"units", paths...)
		for i := range ready {
			ready[i] = pipe.ZCard(ctx, prefix+"ready:"+wire.Escape(queues[i%len(queues)])+":"+paths[i/len(queues)])
		}
	}); err != nil {
		return nil, err
	}
	list := make([]ScopeCount, len(scopes))
	for i, scope := range scopes {
		text, _ := below.Val()[i].(string)
		list[i] = ScopeCount{Scope: scope, Tasks: sum(own[i]) + number(text), Own: sum(own[i])}
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
func (r Reader) Count(ctx context.Context, provider string, wanted func(scope string) bool) (list []ScopeQueue, more bool, err error) {
	return r.count(ctx, provider, countedScopes, wanted)
}

func (r Reader) count(ctx context.Context, provider string, most int, wanted func(scope string) bool) (list []ScopeQueue, more bool, err error) {
	texts, more, err := r.scan(ctx, provider, "rules", most)
	if err != nil {
		return nil, false, err
	}
	var paths []string
	for path := range texts {
		if wanted == nil || wanted(wire.ScopeOf(provider, path)) {
			paths = append(paths, path)
		}
	}
	queues, lengths, err := r.lineLengths(ctx, provider, paths...)
	if err != nil {
		return nil, false, err
	}
	for i, queued := range lengths {
		if own := sum(queued); own > 0 {
			fullest := queues[slices.Index(queued, slices.Max(queued))]
			list = append(list, ScopeQueue{Scope: wire.ScopeOf(provider, paths[i]), Own: own, queue: fullest})
		}
	}
	slices.SortFunc(list, func(a, b ScopeQueue) int { return cmp.Or(cmp.Compare(b.Own, a.Own), cmp.Compare(a.Scope, b.Scope)) })
	return list, more, nil
}

// ReadFirst sets First of scopes that were counted. It costs one round trip.
func (r Reader) ReadFirst(ctx context.Context, provider string, some []ScopeQueue) error {
	if len(some) == 0 {
		return nil
	}
	firsts := make([]*redis.StringSliceCmd, len(some))
	err := r.list.Read(ctx, provider, func(pipe redis.Pipeliner) {
		for i, q := range some {
			firsts[i] = pipe.ZRange(ctx, wire.LineKey(r.list.Prefix(provider), q.queue, wire.Path(q.Scope)), 0, 0)
		}
	})
	if err != nil {
		return err
	}
	for i := range some {
		if first := firsts[i].Val(); len(first) > 0 {
			some[i].First = waitlist.Ref{Scope: some[i].Scope, Queue: some[i].queue, ID: first[0]}
		}
	}
	return nil
}

// InspectFirst sets First and its status of scopes that were counted. It costs two round trips, one more for each further 64
// scopes, and one more if tasks wait for runs to end.
func (r Reader) InspectFirst(ctx context.Context, provider string, some []ScopeQueue) error {
	if err := r.ReadFirst(ctx, provider, some); err != nil {
		return err
	}
	var asks []ask
	for i := range some {
		s, err := r.list.Scopes().Of(some[i].Scope)
		if some[i].Unmatched = err != nil; err == nil {
			asks = append(asks, ask{scope: s, queue: some[i].queue, of: i})
		}
	}
	answers, err := r.inspect(ctx, provider, scopesAtOnce, asks)
	for k, a := range answers {
		some[asks[k].of].FirstStatus = a.WaiterStatus
	}
	return err
}

// Heads returns the first tasks of all lines of some scopes of a provider. It costs two round trips, of one command and one for
// each scope and asynq queue.
func (r Reader) Heads(ctx context.Context, provider string, scopes ...string) (heads []waitlist.Ref, err error) {
	queues, err := r.queues(ctx, provider)
	if err != nil {
		return nil, err
	}
	var lines []ScopeQueue
	for _, scope := range scopes {
		for _, queue := range queues {
			lines = append(lines, ScopeQueue{Scope: scope, queue: queue})
		}
	}
	err = r.ReadFirst(ctx, provider, lines)
	for _, q := range lines {
		if q.First.ID != "" {
			heads = append(heads, q.First)
		}
	}
	return heads, err
}

// Outline returns the scopes of a provider in which something waits, or below which, with most first, at most as many as asked
// for: about so many are read, and more says that there are others. Scopes in which tasks join or leave meanwhile may be missing.
// It costs two round trips for each 1000 scopes, and one for each 1000 lines.
func (r Reader) Outline(ctx context.Context, provider string, most int) (list []ScopeCount, more bool, err error) {
	counts, more, err := r.count(ctx, provider, most, nil)
	if err != nil {
		return nil, false, err
	}
	below, others, err := r.scan(ctx, provider, "units", most)
	if err != nil {
		return nil, false, err
	}
	byScope := map[string]*ScopeCount{}
	for path, text := range below {
		if n := number(text); n > 0 {
			scope := wire.ScopeOf(provider, path)
			byScope[scope] = &ScopeCount{Scope: scope, Tasks: n}
		}
	}
	for _, q := range counts {
		if byScope[q.Scope] == nil {
			byScope[q.Scope] = &ScopeCount{Scope: q.Scope}
		}
		byScope[q.Scope].Own, byScope[q.Scope].Tasks = q.Own, byScope[q.Scope].Tasks+q.Own
	}
	for _, c := range byScope {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b ScopeCount) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Scope, b.Scope))
	})
	return list[:min(most, len(list))], more || others || len(list) > most, nil
}
