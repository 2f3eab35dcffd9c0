package worker

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua" //nolint:depguard // see releaser.go
)

// fences keep the end of one run of a task from ending the next. What asynq sends to end a run is sent again until Redis
// answers, and the network may bring an old copy late: when the task was put back meanwhile, and taken again, asynq's
// script would take it from whoever runs it, and it would run twice. So a lease keeps the fraction of its own under
// which the task was taken, and the script first looks whether it still has it. A lease of whole seconds, as bare asynq
// has it, is let through. fences are safe for concurrent use.
type fences struct {
	mu      sync.Mutex
	own     map[string]string        // fractions by asynq's key of the task, such as "123456"
	scripts map[string]*redis.Script // asynq's, fenced, by their hash
}

// noScript has asynq send a script whole, by which it is learned.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT it is not known here yet" }
func (noScript) RedisError()   {}

// takes notes the lease under which a task was taken, by asynq's key of the task.
func (f *fences) takes(key, lease string) {
	_, fraction, is := strings.Cut(lease, ".")
	f.mu.Lock()
	defer f.mu.Unlock()
	if !is {
		delete(f.own, key)
		return
	}
	if f.own == nil || len(f.own) >= mostEnds {
		f.own = map[string]string{} // those that are forgotten end as they do without us
	}
	f.own[key] = fraction
}

// drops forgets the run that a script names. The task may have been taken again since.
func (f *fences) drops(keys []string, fraction any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if f.own[key] == fraction {
			delete(f.own, key)
		}
	}
}

// arguments are what a fenced script of a run's end has besides; nil where the task has no fraction of its own.
func (f *fences) arguments(keys []string) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	lease, fraction := 0, ""
	for i, key := range keys {
		if strings.HasSuffix(key, "}:lease") {
			lease = i + 1
		} else if own := f.own[key]; own != "" {
			fraction = own
		}
	}
	if lease == 0 || fraction == "" {
		return nil
	}
	return []any{strconv.Itoa(lease), fraction}
}

// renew returns members of a lease with the fractions of their own.
func (f *fences) renew(key string, members []redis.Z) []redis.Z {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]redis.Z, len(members))
	for i, its := range members {
		id, _ := its.Member.(string)
		if fraction, err := strconv.ParseFloat("0."+f.own[strings.TrimSuffix(key, "lease")+"t:"+id], 64); err == nil {
			its.Score += fraction
		}
		out[i] = its
	}
	return out
}

// learn fences a script of asynq's.
func (f *fences) learn(source string) *redis.Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // Redis names scripts by it
	f.mu.Lock()
	defer f.mu.Unlock()
	name := hex.EncodeToString(sum[:])
	if f.scripts == nil {
		f.scripts = map[string]*redis.Script{}
	}
	if f.scripts[name] == nil {
		f.scripts[name] = redis.NewScript(lua.Fence(source))
	}
	return f.scripts[name]
}

// script is the fenced one of asynq's with a hash; nil where it is not known yet.
func (f *fences) script(hash string) *redis.Script {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scripts[hash]
}

// endFenced sends a fenced script until Redis answers. A refusal of the only copy that was sent is no late copy's: a
// heartbeat for a run before has overwritten the lease, and asynq's own script, as bare sends it, ends the run.
func (g *guard) endFenced(ctx context.Context, keys []string, args []any, its *redis.Script, bare script) *redis.Cmd {
	fraction := &counted{text: args[len(args)-1].(string)} //nolint:forcetypeassert // arguments made it
	defer g.fences.drops(keys, fraction.text)
	fenced := append(slices.Clone(args[:len(args)-1]), fraction)
	return g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		once := fraction.written.Load() == 0
		cmd := g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its.EvalSha(ctx, rdb, keys, fenced...) })
		once = once && fraction.written.Load() <= 1
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			fraction.written.Store(0)
			cmd = g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its.Eval(ctx, rdb, keys, fenced...) })
			once = once && fraction.written.Load() <= 1
		}
		switch {
		case !redis.HasErrorPrefix(cmd.Err(), "FENCED"):
			return cmd
		case once:
			return g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return bare(ctx, rdb, args) })
		}
		return redis.NewCmdResult(nil, goneEarlier{})
	})
}

// goneEarlier is asynq's answer where a copy sent before has ended the run.
type goneEarlier struct{}

func (goneEarlier) Error() string { return "NOT FOUND" }
func (goneEarlier) RedisError()   {}
