package asynqx

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// runs are the runs of a server's tasks, as far as their ends need them. asynq's script that ends a run is sent until Redis answers, and
// the network may deliver an old copy late. If the task was taken again meanwhile, that copy would end its new run, and the task would
// run twice. So the lease under which a task was taken has a fraction of a second of its own, and the script first checks whether the
// task still has that lease: it is fenced. A lease of whole seconds, as plain asynq writes it, is accepted.
//
// A run whose lease was lost has no end here and stays, until its task is taken again. runs are safe for concurrent use.
type runs struct {
	mu      sync.Mutex
	all     map[string]*run          // by asynq's key of the task
	scripts map[string]*redis.Script // asynq's, fenced, by their hash
}

// run is one run of a task.
type run struct {
	fraction string   // of its lease, such as "123456"
	back     int64    // second in which asynq brings the task back if it would archive it; 0: it may
	onEnd    []func() // called when Redis has recorded the end
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

// begin records the lease under which a task was taken, by asynq's key of the task.
func (r *runs) begin(key, lease string) {
	_, fraction, _ := strings.Cut(lease, ".")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[key] = &run{fraction: fraction}
}

// change changes the run of a task, by asynq's key of the task.
func (r *runs) change(key string, change func(*run)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[key] == nil {
		r.all[key] = &run{}
	}
	change(r.all[key])
}

// ending returns a copy of the run that a script ends, the key of its task, and which of the script's keys is the lease.
func (r *runs) ending(keys []string) (ends run, task string, lease int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range keys {
		if strings.HasSuffix(key, "}:lease") {
			lease = i + 1
		} else if known := r.all[key]; known != nil {
			ends, task = *known, key
		}
	}
	return ends, task, lease
}

// end removes a run, unless the task was taken again since.
func (r *runs) end(task string, ended run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.all[task]; known != nil && known.fraction == ended.fraction {
		delete(r.all, task)
	}
}

// renewals returns the arguments of keep_leases for leases that asynq renews: each with its own fraction.
func (r *runs) renewals(key string, members []redis.Z) []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	args := make([]any, 0, 2*len(members))
	for _, member := range members {
		id, _ := member.Member.(string)
		lease := strconv.FormatInt(int64(member.Score), 10)
		if known := r.all[strings.TrimSuffix(key, "lease")+"t:"+id]; known != nil && known.fraction != "" {
			lease += "." + known.fraction
		}
		args = append(args, lease, id)
	}
	return args
}

// fenced returns the fenced form of a script of asynq's; nil if its source is not known yet.
func (r *runs) fenced(s script) *redis.Script {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.scripts[s.hash] == nil && s.source != "" {
		r.scripts[s.hash] = redis.NewScript(lua.Fence(s.source))
	}
	return r.scripts[s.hash]
}

// putBack is put_back, fenced.
var putBack = sync.OnceValue(func() *redis.Script { return redis.NewScript(lua.Fence(lua.PutBack.Source())) })

// PutBack has put_back sent where asynq would archive the task when its run ends now. asynq then brings
// the task back at a time, and not early.
func (c *Client) PutBack(queue, id string, at time.Time) {
	c.runs.change(taskKey(queue, id), func(r *run) { r.back = SecondAtOrAfter(at) })
}

// OnEnd has do called when Redis has recorded the end of a task, after what was registered before. It is
// not called if this process dies before, or loses the task's lease.
func (c *Client) OnEnd(queue, id string, do func()) {
	c.runs.change(taskKey(queue, id), func(r *run) { r.onEnd = append(r.onEnd, do) })
}

// sendEnd sends the script that ends a run until Redis answers, and then does what was registered for it.
func (c *Client) sendEnd(ctx context.Context, s script) *redis.Cmd {
	ends, task, lease := c.runs.ending(s.keys)
	keys, args, fenced := s.keys, withoutOurText(s.keys, s.args), c.runs.fenced(s)
	if ends.back > 0 && len(keys) > 3 && strings.HasSuffix(keys[3], "}:archived") { // asynq's archive
		keys = append(slices.Clone(keys[:3]), strings.TrimSuffix(keys[3], "archived")+"retry")
		args, fenced = []any{args[0], args[1], ends.back, "retry"}, putBack()
	}
	if fenced == nil {
		return redis.NewCmdResult(nil, noScript)
	}
	args = append(slices.Clip(args), strconv.Itoa(lease), ends.fraction)
	cmd := c.untilTaken(func(ctx context.Context) *redis.Cmd {
		cmd := c.combiner.send(func(rdb redis.Scripter) *redis.Cmd { return fenced.EvalSha(ctx, rdb, keys, args...) })
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			cmd = c.combiner.send(func(rdb redis.Scripter) *redis.Cmd { return fenced.Eval(ctx, rdb, keys, args...) })
		}
		if redis.HasErrorPrefix(cmd.Err(), "FENCED") {
			return redis.NewCmdResult(nil, goneEarlier)
		}
		return cmd
	})
	c.Slots.ended(task)
	gone := redis.HasErrorPrefix(cmd.Err(), string(goneEarlier))
	if cmd.Err() == nil || errors.Is(cmd.Err(), redis.Nil) || gone { // recorded, perhaps by an earlier call whose reply was lost
		c.runs.end(task, ends)
		for _, do := range ends.onEnd {
			do()
		}
	}
	if expires, _ := ctx.Deadline(); gone && time.Now().Before(expires) {
		return redis.NewCmdResult("OK", nil) // only this process ends a run before its lease is over
	}
	return cmd
}

// untilTaken sends a script that ends a run until Redis answers.
func (c *Client) untilTaken(try func(context.Context) *redis.Cmd) *redis.Cmd {
	ctx, cancel := context.WithTimeout(c.life, endLimit)
	defer cancel()
	for pause := TryPause; ; pause = min(2*pause, TryMaxPause) {
		bounded, done := context.WithTimeout(ctx, TryFor)
		cmd := try(bounded)
		done()
		if !MayPass(cmd.Err()) {
			return cmd
		}
		if !Sleep(ctx, pause) {
			if more, due := c.repeats.Due("given up", time.Now()); due {
				c.cfg.Log.Warn("some task results were not written to redis; asynq recovers these tasks", "more", more, "error", cmd.Err())
			}
			return cmd
		}
		if more, due := c.repeats.Due("retrying", time.Now()); due {
			c.cfg.Log.Warn("cannot write task results to redis; retrying", "more", more, "error", cmd.Err())
		}
	}
}

// EndsRun reports whether a script of asynq's ends a run: only such scripts are sent under the
// deadline of the task's lease and name the active list.
func EndsRun(ctx context.Context, keys []string) bool {
	if _, bounded := ctx.Deadline(); !bounded || len(keys) < 2 {
		return false
	}
	for _, key := range keys {
		if strings.HasPrefix(key, "asynq:{") && strings.HasSuffix(key, "}:active") {
			return true
		}
	}
	return false
}
