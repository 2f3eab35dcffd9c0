package throttle

import (
	"context"
	"slices"
	"strings"

	"github.com/headway-go/headway/lua"
)

// mendBatch is of how many scopes one call makes the tree anew.
const mendBatch = 100

// mendedTree has the tree of a provider made anew from its queues, where that is what a script has failed at, and says
// whether the script is worth sending once more. The scopes are those of the call: their queues are there even where the
// tree that lists them is not.
func (l *Limiter) mendedTree(ctx context.Context, provider string, scopes []string, cause error) bool {
	if !damaged(cause) || !l.lines.of(provider).mendable() {
		return false
	}
	dropped, err := l.mendTree(ctx, provider, l.queuesOf(ctx, provider, scopes))
	if err != nil {
		l.lines.of(provider).mendedInVain()
		return false
	}
	l.lines.of(provider).mendedInVain() // not again for a while, whatever it is
	l.cfg.Logger.WarnContext(ctx, "a damaged value was met, and the order of those who wait was made anew from their queues",
		"provider", provider, "dropped", dropped, "error", cause)
	return true
}

// queuesOf returns the scopes of a provider that have a queue, as far as the tree still tells, and others.
func (l *Limiter) queuesOf(ctx context.Context, provider string, others []string) []string {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	scopes := slices.Clone(others)
	fields, _ := l.rdb.HKeys(ctx, prefix+"!meta").Result() // of another type, it tells nothing
	for _, field := range fields {
		if path, is := strings.CutPrefix(field, "n"); is && strings.HasSuffix(path, "/") {
			scopes = append(scopes, scopeOf(provider, strings.TrimSuffix(path, "/")))
		}
	}
	members, _ := l.rdb.ZRange(ctx, prefix+"!heap", 0, -1).Result()
	for _, member := range members {
		if path, is := leafScope(member); is {
			scopes = append(scopes, scopeOf(provider, path))
		}
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

func (l *Limiter) mendTree(ctx context.Context, provider string, scopes []string) (dropped int64, err error) {
	prefix, first := keyspace(l.cfg.Prefix).provider(provider), 1
	for first == 1 || len(scopes) > 0 {
		some := scopes[:min(mendBatch, len(scopes))]
		scopes = scopes[len(some):]
		t := l.table(some)
		args := t.appendArgs([]any{l.clock(), first})
		keys := slices.Concat(queueShared(prefix)[:5], []any{parkedKey(prefix)}, t.queues())
		reply, err := l.lists(ctx, lua.MendTree, keys, args)
		if err != nil {
			return dropped, err
		}
		if len(reply) == 1 {
			n, _ := reply[0].(int64)
			dropped += n
		}
		first = 0
	}
	return dropped, nil
}
