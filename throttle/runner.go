package throttle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// runner sends script calls. Calls that come while others are on the way are
// sent together, in one pipeline, as soon as those are back: there is no timer
// to wait for company, and a lone call is sent at once by its own caller.
type runner struct {
	rdb       redis.UniversalClient
	timeout   time.Duration
	unbatched bool

	mu      sync.Mutex
	sending int
	queue   []*pending

	idle sync.Pool // of *pending
}

const (
	maxSenders = 2
	maxBatch   = 128
)

func newRunner(rdb redis.UniversalClient, timeout time.Duration, unbatched bool) *runner {
	return &runner{rdb: rdb, timeout: timeout, unbatched: unbatched}
}

// run sends c and returns its reply. A caller whose context ends while others
// send for it leaves at once; one that sends for itself leaves when the client
// does. Either way what may have been granted to it is given back.
func (r *runner) run(ctx context.Context, c call) ([]int64, error) {
	if err := ended(ctx); err != nil {
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
	p := r.pending(ctx, c)
	r.queue = append(r.queue, p)
	r.mu.Unlock()
	return p.wait()
}

// alone sends one call under its caller's context.
func (r *runner) alone(ctx context.Context, c call) ([]int64, error) {
	bounded := within(ctx, r.timeout)
	reply, err := c.send(bounded, r.rdb)
	if err == nil {
		return reply, nil
	}
	if ended(ctx) != nil {
		if c.attempt != nil {
			go r.settle(c)
		}
	} else if ended(bounded) != nil {
		err = fmt.Errorf("%w %s: %v", errNoAnswer, r.timeout, err) //nolint:errorlint // a deadline of ours is not the caller's
	}
	return nil, err
}

// settle learns what became of a call whose caller has gone: it asks again under
// the same attempt id.
func (r *runner) settle(c call) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	if reply, err := c.send(ctx, r.rdb); err == nil {
		c.attempt.orphaned(reply)
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

// drain sends what has queued, batch after batch, until nothing has.
func (r *runner) drain() {
	var batch []*pending
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.sending--
			r.mu.Unlock()
			return
		}
		n := min(len(r.queue), maxBatch)
		batch = append(batch[:0], r.queue[:n]...)
		rest := copy(r.queue, r.queue[n:])
		clear(r.queue[rest:])
		r.queue = r.queue[:rest]
		r.mu.Unlock()
		r.together(batch)
	}
}

// together sends a batch in one pipeline, and again by its text whatever the
// server did not know by its hash.
func (r *runner) together(batch []*pending) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	var unknown []*pending
	r.pipeline(ctx, batch, call.command, func(p *pending, cmd *redis.IntSliceCmd) {
		if unknownScript(cmd.Err()) {
			unknown = append(unknown, p)
			return
		}
		p.finish(p.call.result(cmd))
	})
	if len(unknown) > 0 {
		r.pipeline(ctx, unknown, call.text, func(p *pending, cmd *redis.IntSliceCmd) {
			p.finish(p.call.result(cmd))
		})
	}
}

// pipeline sends those of a batch whose callers still wait, and has done look at
// each of them.
func (r *runner) pipeline(ctx context.Context, batch []*pending, as func(call, context.Context) *redis.IntSliceCmd, done func(*pending, *redis.IntSliceCmd)) {
	batch = stillWanted(batch)
	if len(batch) == 0 {
		return
	}
	cmds := make([]*redis.IntSliceCmd, len(batch))
	pipe := r.rdb.Pipeline()
	for i, p := range batch {
		cmds[i] = as(p.call, ctx)
		_ = pipe.Process(ctx, cmds[i]) // queues it
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, p := range batch {
		done(p, cmds[i])
	}
}

// stillWanted drops the calls whose callers have gone before they were sent.
func stillWanted(batch []*pending) []*pending {
	wanted := batch[:0]
	for _, p := range batch {
		if p.state.Load() == waiting {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

type outcome struct {
	reply []int64
	err   error
}

// pending is a call that waits to be sent together with others.
type pending struct {
	runner *runner
	call   call
	ctx    context.Context //nolint:containedctx // it waits in a queue with its caller's context
	timer  *time.Timer
	state  atomic.Int32
	done   chan outcome
}

const (
	waiting  int32 = iota
	finished       // there is an outcome
	left           // the caller's context ended: nobody will use what is granted
	timedOut       // the time-out passed: the caller may ask again under the same attempt id
)

// pending returns a call to queue, one that was used before where there is one.
// Those are kept for each runner, since a bubble of testing/synctest must not
// see another's timers and channels.
func (r *runner) pending(ctx context.Context, c call) *pending {
	p, ok := r.idle.Get().(*pending)
	if ok {
		p.timer.Reset(r.timeout)
	} else {
		p = &pending{runner: r, timer: time.NewTimer(r.timeout), done: make(chan outcome, 1)}
	}
	p.call, p.ctx = c, ctx
	p.state.Store(waiting)
	return p
}

// wait returns what becomes of the call. A caller whose time is over leaves it,
// and others see to what may have been granted.
func (p *pending) wait() ([]int64, error) {
	var err error
	as := left
	select {
	case out := <-p.done:
		return p.over(out)
	case <-p.ctx.Done():
		err = p.ctx.Err()
	case <-p.timer.C:
		if err = ended(p.ctx); err == nil {
			err, as = fmt.Errorf("%w %s", errNoAnswer, p.runner.timeout), timedOut
		}
	}
	if !p.state.CompareAndSwap(waiting, as) {
		return p.over(<-p.done)
	}
	p.timer.Stop()
	return nil, err
}

// over puts p away for another call.
func (p *pending) over(out outcome) ([]int64, error) {
	p.timer.Stop()
	p.call, p.ctx = call{}, nil
	p.runner.idle.Put(p)
	return out.reply, out.err
}

// finish hands the outcome to the caller. When the caller has left for good, what
// was granted goes back, and what is not known is asked for. When it was told of
// a time-out the grant stands: it may have asked again, and have been granted the
// same, or run without Redis. So it is with a call that is sent alone.
func (p *pending) finish(reply []int64, err error) {
	switch {
	case p.state.CompareAndSwap(waiting, finished):
		p.done <- outcome{reply, err}
	case p.state.Load() == timedOut || p.call.attempt == nil:
	case err != nil:
		go p.runner.settle(p.call)
	default:
		go p.call.attempt.orphaned(reply)
	}
}
