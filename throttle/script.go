package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// scripts holds go-redis's own form of each script, by SHA.
var scripts sync.Map

func scriptOf(s *lua.Script, kinds string) *redis.Script {
	s = s.For(kinds)
	if known, ok := scripts.Load(s.SHA); ok {
		return known.(*redis.Script) //nolint:forcetypeassert // only this function stores
	}
	known, _ := scripts.LoadOrStore(s.SHA, redis.NewScript(s.Source))
	return known.(*redis.Script) //nolint:forcetypeassert // as above
}

// call is one script call on its way.
type call struct {
	script *redis.Script
	keys   []string
	args   []any
	// orphaned gets the reply of a call whose caller has gone meanwhile.
	orphaned func(reply []int64)
}

type outcome struct {
	reply []int64
	err   error
}

type pending struct {
	call
	ctx  context.Context //nolint:containedctx // the call waits in a queue with its caller's context
	done chan outcome
}

// runner sends script calls. Calls that come while others are on the way are
// sent together, in one pipeline, as soon as those are back: there is no timer,
// and a lone call is sent at once by its own caller.
//
// Every script is safe to send again under the same attempt id, so it does no
// harm that go-redis sends one twice after a lost reply.
type runner struct {
	rdb       redis.UniversalClient
	timeout   time.Duration
	unbatched bool

	mu      sync.Mutex
	sending int
	queue   []*pending
}

const (
	maxSenders = 2
	maxBatch   = 128
)

func newRunner(rdb redis.UniversalClient, timeout time.Duration, unbatched bool) *runner {
	return &runner{rdb: rdb, timeout: timeout, unbatched: unbatched}
}

func (r *runner) run(ctx context.Context, c call) ([]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.unbatched {
		return r.alone(ctx, c)
	}
	r.mu.Lock()
	if r.sending < maxSenders {
		r.sending++
		r.mu.Unlock()
		defer r.next()
		return r.alone(ctx, c)
	}
	p := &pending{call: c, ctx: ctx, done: make(chan outcome, 1)}
	r.queue = append(r.queue, p)
	r.mu.Unlock()
	select {
	case out := <-p.done:
		return out.reply, out.err
	case <-ctx.Done():
		go p.abandon()
		return nil, ctx.Err()
	}
}

// abandon waits for the reply that nobody waits for any more.
func (p *pending) abandon() {
	if out := <-p.done; out.err == nil && p.orphaned != nil {
		p.orphaned(out.reply)
	}
}

// next ends a sender's turn: whoever queued meanwhile goes out in a goroutine of
// its own, so that the caller who sent alone need not wait for them.
func (r *runner) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		r.sending--
		return
	}
	go r.drain()
}

func (r *runner) drain() {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.sending--
			r.mu.Unlock()
			return
		}
		batch := r.queue
		if len(batch) > maxBatch {
			batch, r.queue = batch[:maxBatch:maxBatch], batch[maxBatch:]
		} else {
			r.queue = nil
		}
		r.mu.Unlock()
		r.together(batch)
	}
}

// alone sends one call under its caller's context.
func (r *runner) alone(ctx context.Context, c call) ([]int64, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	reply, err := c.script.Run(bounded, r.rdb, c.keys, c.args...).Int64Slice()
	if err != nil && ctx.Err() != nil && c.orphaned != nil {
		// It may have been granted all the same: ask under the same attempt id.
		go r.settle(c)
	}
	return checked(reply, err)
}

// settle learns what became of a call whose caller has gone.
func (r *runner) settle(c call) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	if reply, err := c.script.Run(ctx, r.rdb, c.keys, c.args...).Int64Slice(); err == nil && len(reply) > 0 {
		c.orphaned(reply)
	}
}

// together sends a batch in one pipeline, and again by its text whatever Redis
// did not know by its hash.
func (r *runner) together(batch []*pending) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	batch = stillWanted(batch)
	cmds := r.pipeline(ctx, batch, func(pipe redis.Pipeliner, c call) *redis.Cmd {
		return c.script.EvalSha(ctx, pipe, c.keys, c.args...)
	})
	var unknown []*pending
	for i, p := range batch {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			unknown = append(unknown, p)
			continue
		}
		p.finish(cmds[i])
	}
	if len(unknown) == 0 {
		return
	}
	cmds = r.pipeline(ctx, unknown, func(pipe redis.Pipeliner, c call) *redis.Cmd {
		return c.script.Eval(ctx, pipe, c.keys, c.args...)
	})
	for i, p := range unknown {
		p.finish(cmds[i])
	}
}

func (r *runner) pipeline(ctx context.Context, batch []*pending, send func(redis.Pipeliner, call) *redis.Cmd) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(batch))
	_, _ = r.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, p := range batch {
			cmds[i] = send(pipe, p.call)
		}
		return nil
	}) // every command has its own error
	return cmds
}

func (p *pending) finish(cmd *redis.Cmd) {
	reply, err := checked(cmd.Int64Slice())
	p.done <- outcome{reply, err}
}

// stillWanted drops the calls whose callers have gone before they were sent.
func stillWanted(batch []*pending) []*pending {
	wanted := batch[:0]
	for _, p := range batch {
		if err := p.ctx.Err(); err != nil {
			p.done <- outcome{nil, err}
			continue
		}
		wanted = append(wanted, p)
	}
	return wanted
}

var errReply = errors.New("the script's reply is not as expected")

func checked(reply []int64, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	if len(reply) == 0 {
		return nil, fmt.Errorf("%w: it is empty", errReply)
	}
	return reply, nil
}
