package throttletest

import (
	"context"
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
	Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Peek(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Start(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	GiveBack(ctx context.Context, g throttle.Grant) error
	Hold(ctx context.Context, g throttle.Grant) (context.Context, *throttle.Lease)
}

var (
	_ Interface = (*throttle.Limiter)(nil)
	_ Interface = (*Limiter)(nil)
)

// Answer is what a Limiter says once.
type Answer struct {
	Decision throttle.Decision
	Err      error
}

// Allow is a grant.
func Allow() Answer { return AllowIn(0) }

// AllowIn is a grant whose start lies ahead.
func AllowIn(wait time.Duration) Answer {
	return Answer{Decision: throttle.Decision{Allowed: true, Wait: wait, Binding: -1}}
}

// Deny is a denial until retryAfter from now; throttle.Unknown is one that no
// clock ends.
func Deny(retryAfter time.Duration) Answer {
	return Answer{Decision: throttle.Decision{RetryAfter: retryAfter, Binding: -1}}
}

// Fail is an error, such as throttle.ErrUnavailable or a *throttle.CostError.
func Fail(err error) Answer { return Answer{Err: err} }

// Limiter stands in for a *throttle.Limiter. Each Allow, Decide and Start, and
// each time that Wait asks, takes one of its answers, in order; when they are
// used up all is allowed. The zero Limiter allows everything. It is safe for
// concurrent use, and must not be copied.
//
// Contexts count as they do for a real limiter: one that has ended is answered
// with its own error and takes no answer. Start and Wait wait.
type Limiter struct {
	mu       sync.Mutex
	answers  []Answer
	requests []throttle.Request
	back     []string
	drawn    int
	held     map[string]context.CancelCauseFunc
}

// Script returns a Limiter that gives these answers.
func Script(answers ...Answer) *Limiter { return &Limiter{answers: answers} }

// Then adds answers to those that have not been given yet.
func (l *Limiter) Then(answers ...Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, answers...)
}

// Requests returns what was asked, in order, with costs and attempt ids filled
// in. Allow asks for one unit; Peek is not among them.
func (l *Limiter) Requests() []throttle.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// GivenBack returns the attempt ids of the grants that were given back, in order.
func (l *Limiter) GivenBack() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.back)
}

// LoseLeases ends the context of every run that is held, as if its places could
// not be renewed.
func (l *Limiter) LoseLeases() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lose := range l.held {
		lose(throttle.ErrLeaseLost)
	}
}

// Allow takes the next answer for one unit of scope.
func (l *Limiter) Allow(ctx context.Context, scope string) (throttle.Decision, error) {
	return l.Decide(ctx, throttle.Request{Scope: scope})
}

// Decide takes the next answer.
func (l *Limiter) Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttle.Decision{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn++
	if req.Cost == 0 {
		req.Cost = 1
	}
	if req.ID == "" {
		req.ID = fmt.Sprintf("attempt-%d", l.drawn)
	}
	l.requests = append(l.requests, req)
	answer := l.next()
	if len(l.answers) > 0 {
		l.answers = l.answers[1:]
	}
	if answer.Err == nil && answer.Decision.Allowed {
		answer.Decision.Grant = throttle.NewGrant(req.Scope, req.ID)
	}
	return answer.Decision, answer.Err
}

func (l *Limiter) next() Answer {
	answer := Allow()
	if len(l.answers) > 0 {
		answer = l.answers[0]
	}
	if answer.Decision.At.IsZero() {
		answer.Decision.At = time.Now()
	}
	return answer
}

// Peek says what the next answer is, and leaves it.
func (l *Limiter) Peek(ctx context.Context, _ throttle.Request) (throttle.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttle.Decision{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := l.next()
	return answer.Decision, answer.Err
}

// Start takes the next answer and waits for its start. A wait that ctx ends gives
// the grant back.
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
// denial says, half a second where no clock tells, and not at all after
// throttle.ErrUnavailable. Any other error ends it.
func (l *Limiter) Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	for {
		d, err := l.Start(ctx, req)
		if d.Allowed || err != nil && !isUnavailable(err) {
			return d, err
		}
		if err := sleep(ctx, throttle.Request{}, pause(d)); err != nil {
			return d, err
		}
		req.ID = ""
	}
}

// GiveBack remembers that a grant was given back.
func (l *Limiter) GiveBack(_ context.Context, g throttle.Grant) error {
	if g.Zero() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back = append(l.back, g.ID())
	return nil
}

// Hold returns a context that LoseLeases ends, and a lease whose release does
// nothing.
func (l *Limiter) Hold(ctx context.Context, g throttle.Grant) (context.Context, *throttle.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, lose := context.WithCancelCause(ctx)
	if l.held == nil {
		l.held = map[string]context.CancelCauseFunc{}
	}
	l.held[g.ID()] = lose
	return held, &throttle.Lease{}
}
