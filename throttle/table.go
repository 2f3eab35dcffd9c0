package throttle

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

func text(v any) string {
	s, _ := v.(string)
	return s
}

// scopePath is what keys have of a scope after its provider, and scopeOf the scope.
func scopePath(scope string) string {
	_, rest, nested := strings.Cut(scope, "/")
	if !nested {
		return ""
	}
	path := ""
	for name := range strings.SplitSeq(rest, "/") {
		path += "/" + escape(name)
	}
	return path
}

func scopeOf(provider string, path any) string { return provider + unescape(text(path)) }

// lists runs a script whose reply is not of numbers alone.
func (l *Limiter) lists(ctx context.Context, script *lua.Script, keys, args []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	all := append(append([]any{"evalsha", script.SHA(), len(keys)}, keys...), args...)
	cmd := redis.NewSliceCmd(ctx, all...)
	if err := l.rdb.Process(ctx, cmd); unknownScript(err) {
		all[0], all[1] = "eval", script.Source()
		cmd = redis.NewSliceCmd(ctx, all...)
		_ = l.rdb.Process(ctx, cmd) // the command has its error
	}
	follow(ctx, l.rdb, cmd.Err())
	return cmd.Result()
}

// manyLists is lists for several calls of one script, in one round trip and their order. Each begins with its number of
// keys.
func (l *Limiter) manyLists(ctx context.Context, script *lua.Script, calls [][]any) []*redis.SliceCmd {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	cmds := make([]*redis.SliceCmd, len(calls))
	send := func(calls [][]any, cmds []*redis.SliceCmd, first ...any) {
		_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, args := range calls {
				cmds[i] = redis.NewSliceCmd(ctx, slices.Concat(first, args)...)
				_ = pipe.Process(ctx, cmds[i]) // queues it
			}
			return nil
		})
		follow(ctx, l.rdb, err) // every command has its own error
	}
	send(calls, cmds, "evalsha", script.SHA())
	if from := slices.IndexFunc(cmds, func(c *redis.SliceCmd) bool { return unknownScript(c.Err()) }); from >= 0 {
		send(calls[from:from+1], cmds[from:], "eval", script.Source())
		send(calls[from+1:], cmds[from+1:], "evalsha", script.SHA())
	}
	return cmds
}

// table is several scopes and the rules that they meet, each once.
type table struct {
	plans   []*compiledScope // nil for a scope without rules
	queues  []any            // keys
	paths   []any            // each the numbers of its rules
	rules   []any
	ruleKey []any
	number  map[string]int
	present map[byte]bool
}

// table looks scopes up. One that the policy has no rules for, and does not allow either,
// cannot be served here; scripts are told so by the path "-".
func (l *Limiter) table(scopes []string) *table {
	t := &table{number: map[string]int{}, present: map[byte]bool{}}
	for _, scope := range scopes {
		p, err := l.scopes.of(scope)
		if err == nil && len(p.bounds) == 0 {
			p = p.opened(keyspace(l.cfg.Prefix))
		}
		if err != nil {
			s, err := policy.ParseScope(scope)
			if err == nil {
				t.plans = append(t.plans, nil)
				t.queues, t.paths = append(t.queues, keyspace(l.cfg.Prefix).queue(s)), append(t.paths, "-")
			}
			continue
		}
		path := ""
		for i, key := range p.keys {
			if t.number[key] == 0 {
				t.ruleKey, t.rules = append(t.ruleKey, p.keyArgs[i]), append(t.rules, p.rules[i])
				t.number[key] = len(t.rules)
			}
			path += "," + strconv.Itoa(t.number[key])
			if p.weights[i] != noWeight {
				path += "*" + p.weights[i]
			}
		}
		for i := range len(p.kinds) {
			t.present[p.kinds[i]] = true
		}
		t.plans = append(t.plans, p)
		t.queues, t.paths = append(t.queues, p.queue[0]), append(t.paths, path[1:])
	}
	return t
}

// leave marks the scopes that the application may not spend from, and those that leaves names: a
// dispatch sees to all of them, and grants nobody there.
func (t *table) leave(leaves func(scope string) bool) {
	for i, p := range t.plans {
		if p != nil && (p.refusal != nil || leaves != nil && leaves(p.scope.String())) {
			t.paths[i] = "!" + text(t.paths[i])
		}
	}
}

// edge is when rules of one of the scopes begin or end to hold, in µs since the epoch; "" where all always hold.
func (t *table) edge() any {
	var least any = ""
	for _, p := range t.plans {
		if p != nil && p.hours.until != 0 && (least == "" || p.hours.until < least.(int64)) {
			least = p.hours.until
		}
	}
	return least
}

func (t *table) kinds() string { return kindsOf(t.present) }

func (t *table) keys(provider string) []any {
	return slices.Concat(t.ruleKey, queueShared(provider), t.queues)
}

func (t *table) appendArgs(args []any) []any {
	return slices.Concat(args, []any{len(t.rules)}, t.rules, t.paths)
}
