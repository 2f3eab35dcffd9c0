package throttletest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
)

// Interface is what [Limiter] and *throttle.Limiter both do. A program that is to
// be tested accepts what it needs of it:
//
//	type waiter interface {
//		Wait(context.Context, throttle.Request) (throttle.Decision, error)
//	}
type Interface interface {
	Allow(ctx context.Context, scope string) (throttle.Decision, error)
	AllowAtMost(ctx context.Context, scope string, n int64) (throttle.Decision, int64, error)
	Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Peek(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Start(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Refund(ctx context.Context, g throttle.Grant) error
	Lease(ctx context.Context, g throttle.Grant) (context.Context, *throttle.Lease)
}

var (
	_ Interface = (*throttle.Limiter)(nil)
	_ Interface = (*Limiter)(nil)
)

// Answer is one scripted answer of a Limiter.
type Answer struct {
	Decision throttle.Decision
	Err      error
	// Taken is the largest number of units that AllowAtMost takes. Defaults to all it asks for.
	Taken int64
}

// Allow returns an answer that grants the request now.
func Allow() Answer { return AllowIn(0) }

// AllowIn returns an answer that grants a start after wait.
func AllowIn(wait time.Duration) Answer {
	return Answer{Decision: throttle.Decision{Allowed: true, Wait: wait, Binding: -1}}
}

// Deny returns a denial until retryAfter from now; throttle.Never for one that no clock ends.
func Deny(retryAfter time.Duration) Answer {
	return Answer{Decision: throttle.Decision{RetryAfter: retryAfter, Binding: -1}}
}

// Fail returns an answer with an error, such as throttle.ErrUnavailable or a *policy.CostError.
func Fail(err error) Answer { return Answer{Err: err} }

// Limiter is a fake of a *throttle.Limiter. Each Allow, AllowAtMost, Decide and Start, and each
// attempt of Wait, takes one of its answers, in order. When they are used up it answers by Otherwise,
// and allows everything without that. The zero Limiter allows everything. It is safe for concurrent
// use, and must not be copied.
//
// Contexts count as they do for a real limiter: a request with an ended context returns the context's
// error and takes no answer. Start and Wait wait.
type Limiter struct {
	mu        sync.Mutex
	answers   []Answer
	otherwise func(throttle.Request) Answer
	requests  []throttle.Request
	drawn     int
	back      []string
	held      []context.CancelCauseFunc
}

// Script returns a Limiter that gives these answers.
func Script(answers ...Answer) *Limiter { return &Limiter{answers: answers} }

// Then appends answers to the remaining ones.
func (l *Limiter) Then(answers ...Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, answers...)
}

// Otherwise sets the answer to requests once no other answers are left: by scope, by the number of
// requests, or always the same, as in an outage that lasts until Otherwise is called again. nil allows
// everything. Peek calls it too. answer may be called by several goroutines at once.
func (l *Limiter) Otherwise(answer func(throttle.Request) Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.otherwise = answer
}

// Requests returns the requests received, in order, with costs and attempt ids filled in. A request of
// Allow is for one unit. Requests of Peek are not included.
func (l *Limiter) Requests() []throttle.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// Refunded returns the attempt ids of the refunded grants, in order.
func (l *Limiter) Refunded() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.back)
}

// LoseLeases ends the context of every held run, as if its places could not be renewed.
func (l *Limiter) LoseLeases() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lose := range l.held {
		lose(throttle.ErrLeaseLost)
	}
	l.held = nil
}

// Allow takes the next answer for one unit of scope.
func (l *Limiter) Allow(ctx context.Context, scope string) (throttle.Decision, error) {
	return l.Decide(ctx, throttle.Request{Scope: scope})
}

// AllowAtMost takes the next answer for n units of scope, and as many of them as Answer.Taken says.
func (l *Limiter) AllowAtMost(ctx context.Context, scope string, n int64) (d throttle.Decision, taken int64, err error) {
	answer, d, err := l.decide(ctx, throttle.Request{Scope: scope, Cost: n})
	if err != nil || !d.Allowed {
		return d, 0, err
	}
	if answer.Taken > 0 {
		n = min(n, answer.Taken)
	}
	return d, n, nil
}

// Decide takes the next answer.
func (l *Limiter) Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	_, d, err := l.decide(ctx, req)
	return d, err
}

func (l *Limiter) decide(ctx context.Context, req throttle.Request) (Answer, throttle.Decision, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, throttle.Decision{}, err
	}
	req.ID = l.named(req.ID)
	if req.Cost == 0 && len(req.Costs) == 0 {
		req.Cost = 1
	}
	answer := l.take(req)(req)
	d, err := answer.said()
	if err == nil && d.Allowed && !req.Costs.Zero() {
		d.Grant = throttle.NewGrant(req.Scope, req.ID)
	}
	return answer, d, err
}

// take notes a request, and takes what answers it.
func (l *Limiter) take(req throttle.Request) func(throttle.Request) Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, req)
	answer := l.next()
	if len(l.answers) > 0 {
		l.answers = l.answers[1:]
	}
	return answer
}

// next is what answers the next request.
func (l *Limiter) next() func(throttle.Request) Answer {
	answer := Allow()
	switch {
	case len(l.answers) > 0:
		answer = l.answers[0]
	case l.otherwise != nil:
		return l.otherwise
	}
	return func(throttle.Request) Answer { return answer }
}

// said is what the answer comes to now.
func (a Answer) said() (throttle.Decision, error) {
	if a.Err == nil && a.Decision.At.IsZero() {
		a.Decision.At = time.Now()
	}
	return a.Decision, a.Err
}

// Peek returns the next answer without taking it.
func (l *Limiter) Peek(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttle.Decision{}, err
	}
	l.mu.Lock()
	answer := l.next()
	l.mu.Unlock()
	return answer(req).said()
}

// Start takes the next answer and waits for its start. If ctx ends the wait, the grant is refunded.
func (l *Limiter) Start(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	d, err := l.Decide(ctx, req)
	if err != nil || !d.Allowed {
		return d, err
	}
	if err := sleep(ctx, req, d.Wait); err != nil {
		return throttle.Decision{}, l.putBack(ctx, d.Grant, err)
	}
	return d, nil
}

// Wait takes answers until one allows, waiting in between for as long as each
// denial says, half a second where no clock tells, and a quarter of a second
// after throttle.ErrUnavailable, which it asks again under the same attempt id. A
// denial until after ctx's deadline ends it at once, with throttle.ErrMaxWait;
// so does any other error.
func (l *Limiter) Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	for {
		req.ID = l.named(req.ID)
		d, err := l.Start(ctx, req)
		switch {
		case err == nil && d.Allowed:
			return d, nil
		case err == nil:
			err = tooLong(ctx, d)
			req.ID = ""
		case errors.Is(err, throttle.ErrUnavailable):
			d, err = throttle.Decision{RetryAfter: outagePause}, nil
		}
		if err != nil {
			return d, err
		}
		if err := sleep(ctx, throttle.Request{}, pause(d)); err != nil {
			return d, err
		}
	}
}

// named returns id, or draws one where there is none.
func (l *Limiter) named(id string) string {
	if id != "" {
		return id
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn++
	return fmt.Sprintf("attempt-%d", l.drawn)
}

// Refund records that a grant was refunded.
func (l *Limiter) Refund(_ context.Context, g throttle.Grant) error {
	if g.Zero() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back = append(l.back, g.ID())
	return nil
}

// Lease returns a context that LoseLeases ends, and a lease whose release does
// nothing. A zero grant holds nothing, and the context is ctx itself.
func (l *Limiter) Lease(ctx context.Context, g throttle.Grant) (context.Context, *throttle.Lease) {
	if g.Zero() {
		return ctx, &throttle.Lease{}
	}
	held, lose := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(l.held, lose)
	return held, &throttle.Lease{}
}
