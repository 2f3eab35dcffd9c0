package asynqx

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// fences keep the end of one run of a task from ending the next one. asynq's script that ends a run is
// sent again until Redis answers, and the network may deliver an old copy late. If the task was put
// back and taken again meanwhile, asynq's script would take it from its new run, and it would run
// twice. So the lease under which the task was taken has a fraction of a second of its own, and the
// script first checks whether the task still has that lease. A lease of whole seconds, as plain asynq
// writes it, is accepted. fences are safe for concurrent use.
type fences struct {
	mu      sync.Mutex
	own     map[string]*pass          // by asynq's key of the task
	open    map[context.Context]*pass // of ends that Redis has not answered: asynq's syncer sends one again with its context
	scripts map[string]*redis.Script  // asynq's, fenced, by their hash
}

// pass is what identifies the end of one run.
type pass struct {
	fraction string // of its lease, such as "123456"
	doubtful bool   // a copy that was sent may have been executed
	back     int64  // second in which asynq brings the task back if it would archive it; 0: it may
}

// noScript makes asynq send a script whole, from which it is learned.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT it is not known here yet" }
func (noScript) RedisError()   {}

// takes records the lease under which a task was taken, by asynq's key of the task.
func (f *fences) takes(key, lease string) {
	_, fraction, is := strings.Cut(lease, ".")
	f.mu.Lock()
	defer f.mu.Unlock()
	if !is {
		delete(f.own, key)
		return
	}
	if f.own == nil || len(f.own) >= mostEnds {
		f.own = map[string]*pass{} // those that are dropped end as in plain asynq
	}
	f.own[key] = &pass{fraction: fraction}
}

// limited has a run end with put_back where asynq would archive the task, by asynq's key of the task.
func (f *fences) limited(key string, back int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.own == nil {
		f.own = map[string]*pass{}
	}
	if f.own[key] == nil {
		f.own[key] = &pass{}
	}
	f.own[key].back = back
}

// of returns the pass of the run that a script ends, and which of its keys is the lease; nil if the
// task's lease has no fraction of its own.
func (f *fences) of(ctx context.Context, keys []string) (its *pass, lease int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, key := range keys {
		if strings.HasSuffix(key, "}:lease") {
			lease = i + 1
		} else if own := f.own[key]; own != nil {
			its = own
		}
	}
	if again := f.open[ctx]; again != nil {
		its = again
	}
	if lease == 0 {
		return nil, 0
	}
	return its, lease
}

// ends removes a run whose end Redis has answered, and keeps its pass otherwise. The task may have
// been taken again since.
func (f *fences) ends(ctx context.Context, keys []string, its *pass, answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if f.own[key] == its {
			delete(f.own, key)
		}
	}
	switch {
	case answered:
		delete(f.open, ctx)
	case f.open == nil || len(f.open) >= mostEnds:
		f.open = map[context.Context]*pass{ctx: its}
	default:
		f.open[ctx] = its
	}
}

// renewals returns the arguments of keep_leases for leases that asynq renews: each with its own
// fraction.
func (f *fences) renewals(key string, members []redis.Z) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	args := make([]any, 0, 2*len(members))
	for _, its := range members {
		id, _ := its.Member.(string)
		lease := strconv.FormatInt(int64(its.Score), 10)
		if own := f.own[strings.TrimSuffix(key, "lease")+"t:"+id]; own != nil {
			lease += "." + own.fraction
		}
		args = append(args, lease, id)
	}
	return args
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

// script returns the fenced form of asynq's script with a hash; nil if it is not known yet.
func (f *fences) script(hash string) *redis.Script {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scripts[hash]
}

// fence precedes a script that ends a run: its pass, and which of its keys is the lease.
type fence struct {
	*pass

	lease int
}

// endFenced sends a fenced script until Redis answers. If no earlier copy can have been executed, a
// refusal while asynq's lease lasts is not due to a late copy: the lease was overwritten. Then asynq's
// own script, as bare sends it, ends the run.
func (g *Client) endFenced(ctx context.Context, keys []string, args []any, by fence, its *redis.Script, bare script) *redis.Cmd {
	fraction := &counted{text: by.fraction}
	fenced := append(slices.Clip(args), strconv.Itoa(by.lease), fraction)
	once := func(send func(redis.Scripter) *redis.Cmd) (cmd *redis.Cmd, written int32) {
		before := fraction.written.Load()
		cmd = g.ends.send(send)
		return cmd, fraction.written.Load() - before
	}
	until, _ := ctx.Deadline()
	cmd := g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		cmd, n := once(func(rdb redis.Scripter) *redis.Cmd { return its.EvalSha(ctx, rdb, keys, fenced...) })
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") { // the last copy had no effect
			by.doubtful = by.doubtful || n > 1
			cmd, n = once(func(rdb redis.Scripter) *redis.Cmd { return its.Eval(ctx, rdb, keys, fenced...) })
		}
		refused := redis.HasErrorPrefix(cmd.Err(), "FENCED")
		if refused && !by.doubtful && n <= 1 && time.Now().Before(until) {
			refused = false
			cmd = g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return bare(ctx, rdb, args) })
		}
		by.doubtful = by.doubtful || n > 1 || n == 1 && !isReply(cmd.Err())
		if refused {
			return redis.NewCmdResult(nil, goneEarlier{})
		}
		return cmd
	})
	g.fences.ends(ctx, keys, by.pass, cmd.Err() == nil || isGone(cmd.Err()))
	return cmd
}

// isReply reports whether err is Redis's answer to a script that was written once: a script that it
// refused had no effect. Other refusals may concern a reconnected connection, and say nothing about
// the script.
func isReply(err error) bool {
	return err == nil || slices.ContainsFunc([]string{"NOT FOUND", "FENCED", "NOSCRIPT", "READONLY", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN"},
		func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}

// goneEarlier is asynq's answer if an earlier copy has ended the run.
type goneEarlier struct{}

func (goneEarlier) Error() string { return "NOT FOUND" }
func (goneEarlier) RedisError()   {}
