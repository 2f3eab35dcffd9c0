package throttle

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// runner sends script calls. Calls that come while others are on the way are
// sent together as soon as those are back: attempts of one provider as one script
// call (see many), the rest beside it in one pipeline. There is no timer to wait
// for company, and a lone call is sent at once by its own caller.
type runner struct {
	rdb       redis.UniversalClient
	timeout   time.Duration
	unbatched bool

	mu      sync.Mutex
	sending int
	queue   *round // nil when nobody waits

	apart apart
	idle  sync.Pool // of *pending
}

const (
	maxSenders = 2
	maxBatch   = 256
)

func newRunner(rdb redis.UniversalClient, timeout time.Duration, unbatched bool) *runner {
	return &runner{rdb: rdb, timeout: timeout, unbatched: unbatched}
}

// run sends c and returns its reply. A caller whose context ends while others
// send for it leaves at once; one that sends for itself leaves when the client
// does. Either way what may have been granted to it is given back. While a cluster moves the
// call's slot it is sent again, for movingFor at most.
func (r *runner) run(ctx context.Context, c call) ([]int64, error) {
	reply, err := r.once(ctx, c)
	if moving(err) {
		return r.whileMoving(ctx, c, err)
	}
	return reply, err
}

// once sends c once, alone or with others.
func (r *runner) once(ctx context.Context, c call) ([]int64, error) {
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
	p := r.enqueue(ctx, c)
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
	follow(ctx, r.rdb, err)
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
	if r.queue == nil {
		r.sending--
		return
	}
	go r.drain()
}

// drain sends what has queued, round after round, until nothing has. Those who
// were answered may go on first, so that whoever asks at once again is with the
// next round: nobody is waited for, but a round of few costs as much as one of many.
func (r *runner) drain() {
	for {
		r.mu.Lock()
		round := r.queue
		r.queue = nil
		if round == nil {
			r.sending--
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for batch := range slices.Chunk(round.asked, maxBatch) {
			r.together(batch)
		}
		round.timer.Stop()
		runtime.Gosched()
	}
}

// together sends a batch, and once more what the server did not know by its hash
// or would not decide together.
func (r *runner) together(batch []*pending) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	for parcels := r.parcels(stillWanted(batch)); len(parcels) > 0; {
		parcels = r.exchange(ctx, parcels)
	}
}

// parcel is one command of a batch.
type parcel interface {
	// command asks for the script by its hash, or sends its text.
	command(ctx context.Context) redis.Cmder
	// opened hands the reply out, and returns what has to be sent once more.
	opened(cmd redis.Cmder) (again []parcel)
}

// exchange sends parcels in one round trip, and returns what has to be sent once
// more.
func (r *runner) exchange(ctx context.Context, parcels []parcel) (again []parcel) {
	if len(parcels) == 1 {
		cmd := parcels[0].command(ctx)
		follow(ctx, r.rdb, r.rdb.Process(ctx, cmd)) // the command has its error
		return parcels[0].opened(cmd)
	}
	cmds := make([]redis.Cmder, len(parcels))
	pipe := r.rdb.Pipeline()
	for i, one := range parcels {
		cmds[i] = one.command(ctx)
		_ = pipe.Process(ctx, cmds[i]) // queues it
	}
	_, err := pipe.Exec(ctx) // every command has its own error
	follow(ctx, r.rdb, err)
	for i, one := range parcels {
		again = append(again, one.opened(cmds[i])...)
	}
	return again
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

// round is the calls that wait to be sent together. They have one timer between
// them, since one for each costs as much as to hand its answer over.
type round struct {
	asked []*pending
	late  chan struct{} // closed when the first of them has waited for the time-out
	timer *time.Timer
}

// enqueue has a call wait for the next round; r.mu is held.
func (r *runner) enqueue(ctx context.Context, c call) *pending {
	if r.queue == nil {
		late := make(chan struct{})
		r.queue = &round{asked: make([]*pending, 0, maxBatch/4), late: late, timer: time.AfterFunc(r.timeout, func() { close(late) })}
	}
	p, ok := r.idle.Get().(*pending)
	if !ok {
		p = &pending{runner: r, done: make(chan outcome, 1)}
	}
	p.call, p.ctx, p.late = c, ctx, r.queue.late
	if c.attempt != nil {
		p.since = c.attempt.sent // a moment ago
	} else {
		p.since = time.Now()
	}
	p.state.Store(waiting)
	r.queue.asked = append(r.queue.asked, p)
	return p
}

type outcome struct {
	reply []int64
	err   error
}

// pending is a call that waits to be sent together with others. It is kept for
// the next call of its runner, and no other's: a bubble of testing/synctest must
// not see another's channels.
type pending struct {
	runner *runner
	call   call
	ctx    context.Context //nolint:containedctx // it waits in a queue with its caller's context
	since  time.Time
	late   <-chan struct{} // its round's
	state  atomic.Int32
	done   chan outcome

	text   bool // the server did not know the script by its hash
	singly bool // it was not decided together with others
}

const (
	waiting  int32 = iota
	finished       // there is an outcome
	left           // the caller's context ended: nobody will use what is granted
	timedOut       // the time-out passed: the caller may ask again under the same attempt id
)

// wait returns what becomes of the call. A caller whose time is over leaves it,
// and others see to what may have been granted.
func (p *pending) wait() ([]int64, error) {
	select {
	case out := <-p.done:
		return p.over(out)
	case <-p.ctx.Done():
		return p.leave(left, p.ctx.Err())
	case <-p.late:
	}
	timer := time.NewTimer(p.runner.timeout - time.Since(p.since))
	defer timer.Stop()
	select {
	case out := <-p.done:
		return p.over(out)
	case <-p.ctx.Done():
		return p.leave(left, p.ctx.Err())
	case <-timer.C:
	}
	if err := ended(p.ctx); err != nil {
		return p.leave(left, err)
	}
	return p.leave(timedOut, fmt.Errorf("%w %s", errNoAnswer, p.runner.timeout))
}

// leave gives the call up, unless there is an outcome by now. It is not used
// again: whoever sends it still looks at it.
func (p *pending) leave(as int32, err error) ([]int64, error) {
	if !p.state.CompareAndSwap(waiting, as) {
		return p.over(<-p.done)
	}
	return nil, err
}

// over puts p away for another call.
func (p *pending) over(out outcome) ([]int64, error) {
	reply := p.call.full(out.reply)
	p.call, p.ctx, p.late, p.text, p.singly = call{}, nil, nil, false, false
	p.runner.idle.Put(p)
	return reply, out.err
}

// finish hands the outcome to the caller. When the caller has left for good, what
// was granted goes back, and what is not known has to be settled. When it was told of
// a time-out the grant stands: it may have asked again, and have been granted the
// same, or run without Redis. So it is with a call that is sent alone.
func (p *pending) finish(reply []int64, err error) (unsettled bool) {
	switch {
	case p.state.CompareAndSwap(waiting, finished):
		p.done <- outcome{reply, err}
	case p.state.Load() == timedOut || p.call.attempt == nil:
	case err != nil:
		return true
	default:
		go p.call.attempt.orphaned(p.call.full(reply))
	}
	return false
}

func (p *pending) command(ctx context.Context) redis.Cmder {
	if p.text {
		return p.call.text(ctx)
	}
	return p.call.command(ctx)
}

func (p *pending) opened(cmd redis.Cmder) (again []parcel) {
	reply := cmd.(*redis.IntSliceCmd) //nolint:forcetypeassert // see command
	if unknownScript(reply.Err()) && !p.text {
		if p.text, p.singly = true, true; p.state.Load() == waiting {
			again = append(again, p)
		}
		return again
	}
	if p.together() && p.call.short(reply.Val()) {
		p.runner.apart.remove(p.call.attempt.plan)
	}
	if p.finish(p.call.result(reply)) {
		go p.runner.settle(p.call)
	}
	return nil
}
