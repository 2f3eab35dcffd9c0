package throttle

import (
	"context"
	"fmt"
	"runtime"
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
	queue   *pendingBatch   // nil when nobody waits
	full    []*pendingBatch // those before it that no more fit in

	unbatchables unbatchable
	idle         sync.Pool // of *pending
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
	if err != nil && moving(err) {
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
		return r.sendOne(ctx, c)
	}
	r.mu.Lock()
	if r.sending < maxSenders {
		r.sending++
		r.mu.Unlock()
		defer r.next()
		return r.sendOne(ctx, c)
	}
	p := r.enqueue(ctx, c)
	r.mu.Unlock()
	return p.wait()
}

// sendOne sends one call under its caller's context.
func (r *runner) sendOne(ctx context.Context, c call) ([]int64, error) {
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

// takeRound returns those who are to be sent next, nil where nobody waits; r.mu is held.
func (r *runner) takeRound() *pendingBatch {
	if len(r.full) > 0 {
		first := r.full[0]
		r.full = r.full[1:]
		return first
	}
	last := r.queue
	r.queue = nil
	return last
}

// drain sends what has queued, round after round, until nothing has. Those who
// were answered may go on first, so that whoever asks at once again is with the
// next round: nobody is waited for, but a round of few costs as much as one of many.
func (r *runner) drain() {
	for {
		r.mu.Lock()
		round := r.takeRound()
		if round == nil {
			r.sending--
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		r.together(round.asked)
		runtime.Gosched()
	}
}

// together sends a batch, and once more what the server did not know by its hash
// or would not decide together. Nobody who was answered waits for that.
func (r *runner) together(batch []*pending) {
	round := batch[0].round
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	var again []command
	if parcels := r.commands(stillWanted(batch)); len(parcels) > 0 {
		again = r.exchange(ctx, parcels)
	}
	round.timer.Stop()
	round.wake()
	for len(again) > 0 {
		again = r.exchange(ctx, again)
	}
}

// command is one command of a batch.
type command interface {
	// command asks for the script by its hash, or sends its text.
	command(ctx context.Context) redis.Cmder
	// opened hands the reply out, and returns what has to be sent once more.
	opened(cmd redis.Cmder) (again []command)
}

// exchange sends parcels in one round trip, and returns what has to be sent once
// more.
func (r *runner) exchange(ctx context.Context, parcels []command) (again []command) {
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
		if p.wanted() {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

// pendingBatch is the calls that wait to be sent together. One channel tells all of them that
// they were answered, and one timer that time is over: to tell each by itself costs as much as all
// else that is done for it.
type pendingBatch struct {
	asked []*pending
	woken chan struct{} // closed when those who were answered at once are, or the first has waited for the time-out
	done  atomic.Bool   // it is closed
	timer *time.Timer
}

func newRound(timeout time.Duration) *pendingBatch {
	one := &pendingBatch{asked: make([]*pending, 0, maxBatch/4), woken: make(chan struct{})}
	one.timer = time.AfterFunc(timeout, one.wake)
	return one
}

func (one *pendingBatch) wake() {
	if one.done.CompareAndSwap(false, true) {
		close(one.woken)
	}
}

// enqueue has a call wait for the next round; r.mu is held.
func (r *runner) enqueue(ctx context.Context, c call) *pending {
	if r.queue != nil && len(r.queue.asked) == maxBatch {
		r.full, r.queue = append(r.full, r.queue), nil
	}
	if r.queue == nil {
		r.queue = newRound(r.timeout)
	}
	p, ok := r.idle.Get().(*pending)
	if !ok {
		p = &pending{runner: r, done: make(chan struct{}, 1)}
	}
	p.call, p.ctx, p.round = c, ctx, r.queue
	if c.attempt != nil {
		p.since = c.attempt.sent // a moment ago
	} else {
		p.since = time.Now()
	}
	p.state.Store(waiting)
	r.queue.asked = append(r.queue.asked, p)
	return p
}

// pending is a call that waits to be sent together with others. It is kept for
// the next call of its runner, and no other's: a bubble of testing/synctest must
// not see another's channels.
type pending struct {
	runner *runner
	call   call
	ctx    context.Context //nolint:containedctx // it waits in a queue with its caller's context
	since  time.Time
	round  *pendingBatch
	state  atomic.Int32

	listens bool          // the caller's own word for that state
	done    chan struct{} // tells a caller who listens that there is an outcome

	reply []int64 // the outcome, once there is one
	err   error

	text   bool // the server did not know the script by its hash
	singly bool // it was not decided together with others
}

const (
	waiting   int32 = iota
	listening       // its round was woken, and it has no outcome yet
	finished        // there is an outcome
	left            // the caller's context ended: nobody will use what is granted
	timedOut        // the time-out passed: the caller may ask again under the same attempt id
)

// wanted says whether somebody waits for its outcome.
func (p *pending) wanted() bool {
	state := p.state.Load()
	return state == waiting || state == listening
}

// wait returns what becomes of the call. A caller whose time is over leaves it,
// and others see to what may have been granted.
func (p *pending) wait() ([]int64, error) {
	if p.state.Load() == finished {
		return p.over()
	}
	select {
	case <-p.round.woken:
	case <-p.ctx.Done():
		return p.leave(left, p.ctx.Err())
	}
	if !p.state.CompareAndSwap(waiting, listening) {
		return p.over()
	}
	return p.listen()
}

// listen waits for the outcome of a call that its round has not: it is sent again, or time is over.
func (p *pending) listen() ([]int64, error) {
	p.listens = true
	timer := time.NewTimer(p.runner.timeout - time.Since(p.since))
	defer timer.Stop()
	select {
	case <-p.done:
		return p.over()
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
	if p.state.CompareAndSwap(waiting, as) {
		return nil, err
	}
	if p.state.CompareAndSwap(listening, as) {
		return nil, err
	}
	if p.listens {
		<-p.done
	}
	return p.over()
}

// over puts p away for another call.
func (p *pending) over() ([]int64, error) {
	reply, err := p.call.full(p.reply), p.err
	p.call, p.ctx, p.round, p.reply, p.err, p.listens, p.text, p.singly = call{}, nil, nil, nil, nil, false, false, false
	p.runner.idle.Put(p)
	return reply, err
}

// finish hands the outcome to the caller. When the caller has left for good, what
// was granted goes back, and what is not known has to be settled. When it was told of
// a time-out the grant stands: it may have asked again, and have been granted the
// same, or run without Redis. So it is with a call that is sent alone.
func (p *pending) finish(reply []int64, err error) (unsettled bool) {
	p.reply, p.err = reply, err
	switch {
	case p.state.CompareAndSwap(waiting, finished): // its round wakes it
	case p.state.CompareAndSwap(listening, finished):
		p.done <- struct{}{}
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

func (p *pending) opened(cmd redis.Cmder) (again []command) {
	reply := cmd.(*redis.IntSliceCmd) //nolint:forcetypeassert // see command
	if unknownScript(reply.Err()) && !p.text {
		if p.text, p.singly = true, true; p.wanted() {
			again = append(again, p)
		}
		return again
	}
	if p.together() && p.call.short(reply.Val()) {
		p.runner.unbatchables.remove(p.call.attempt.plan)
	}
	if p.finish(p.call.result(reply)) {
		go p.runner.settle(p.call)
	}
	return nil
}
