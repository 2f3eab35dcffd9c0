package asynqx

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

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
	own     map[string]*pass         // by asynq's key of the task
	scripts map[string]*redis.Script // asynq's, fenced, by their hash
}

// pass is what identifies the end of one run.
type pass struct {
	fraction string // of its lease, such as "123456"
	back     int64  // second in which asynq brings the task back if it would archive it; 0: it may
}

// reply is an error of Redis that the client gives to asynq.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

const (
	// noScript makes asynq send a script whole, from which it is learned.
	noScript reply = "NOSCRIPT it is not known here yet"
	// goneEarlier is the answer if an earlier copy has ended the run.
	goneEarlier reply = "NOT FOUND"
)

// takes records the lease under which a task was taken, by asynq's key of the task.
func (f *fences) takes(key, lease string) {
	_, fraction, is := strings.Cut(lease, ".")
	f.mu.Lock()
	defer f.mu.Unlock()
	if !is {
		delete(f.own, key)
		return
	}
	if len(f.own) >= mostEnds {
		f.own = map[string]*pass{} // those that are dropped end as in plain asynq
	}
	f.own[key] = &pass{fraction: fraction}
}

// limited has a run end with put_back where asynq would archive the task, by asynq's key of the task.
func (f *fences) limited(key string, back int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.own[key] == nil {
		f.own[key] = &pass{}
	}
	f.own[key].back = back
}

// of returns the pass of the run that a script ends, and which of its keys is the lease; nil if the
// task's lease has no fraction of its own.
func (f *fences) of(keys []string) (its *pass, lease int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, key := range keys {
		if strings.HasSuffix(key, "}:lease") {
			lease = i + 1
		} else if own := f.own[key]; own != nil {
			its = own
		}
	}
	return its, lease
}

// ends removes a run whose end Redis has answered. The task may have been taken again since.
func (f *fences) ends(keys []string, its *pass) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if f.own[key] == its {
			delete(f.own, key)
		}
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

// script returns the fenced form of asynq's script with a hash; nil if its source is not known. source is
// empty where asynq sends the hash alone.
func (f *fences) script(hash, source string) *redis.Script {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scripts[hash] == nil && source != "" {
		f.scripts[hash] = redis.NewScript(lua.Fence(source))
	}
	return f.scripts[hash]
}

// endFenced sends a fenced script until Redis answers. lease is which of its keys is the lease.
func (g *Client) endFenced(ctx context.Context, keys []string, args []any, run *pass, lease int, its *redis.Script) *redis.Cmd {
	args = append(slices.Clip(args), strconv.Itoa(lease), run.fraction)
	cmd := g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		cmd := g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its.EvalSha(ctx, rdb, keys, args...) })
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			cmd = g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its.Eval(ctx, rdb, keys, args...) })
		}
		if redis.HasErrorPrefix(cmd.Err(), "FENCED") {
			return redis.NewCmdResult(nil, goneEarlier)
		}
		return cmd
	})
	if cmd.Err() == nil || isGone(cmd.Err()) {
		g.fences.ends(keys, run)
	}
	return cmd
}
