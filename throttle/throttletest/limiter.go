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

// Answer is one scripted answer of a Limiter.
type Answer struct {
	Decision throttle.Decision
	Err      error
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

// Limiter is a fake of a *throttle.Limiter. Each Allow, AllowAtMost, Decide and Start, and each attempt of Wait, takes one of its
// answers, in order. When they are used up it answers by Otherwise, and allows everything without that. The zero Limiter allows
// everything. It is safe for concurrent use, and must not be copied.
//
// A request with an ended context returns the context's error and takes no answer. Start and Wait wait.
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

// Otherwise sets the answer to requests, Peek's too, once no other answers are left. nil allows everything. answer may be called
// by several goroutines at once.
func (l *Limiter) Otherwise(answer func(throttle.Request) Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.otherwise = answer
}

// Requests returns the requests received, in order, with costs and attempt ids filled in. A request of Allow is for one unit.
// Requests of Peek are not included.
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

// AllowAtMost takes the next answer for n units of scope: all of them, or none.
func (l *Limiter) AllowAtMost(ctx context.Context, scope string, n int64) (d throttle.Decision, taken int64, err error) {
	if d, err = l.Decide(ctx, throttle.Request{Scope: scope, Cost: n}); d.Allowed {
		taken = n
	}
	return d, taken, err
}

// Decide takes the next answer.
func (l *Limiter) Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttle.Decision{}, err
	}
	req.ID = l.named(req.ID)
	if req.Cost == 0 && len(req.Costs) == 0 {
		req.Cost = 1
	}
	l.mu.Lock()
	l.requests = append(l.requests, req)
	answer := l.next()
	l.answers = l.answers[min(1, len(l.answers)):]
	l.mu.Unlock()
	d, err := answer(req).now()
	if err == nil && d.Allowed && !req.Costs.Zero() {
		d.Grant = throttle.NewGrant(req.Scope, req.ID)
	}
	return d, err
}

// next returns what answers the next request. mu is held.
func (l *Limiter) next() func(throttle.Request) Answer {
	answer := Allow()
	if len(l.answers) > 0 {
		answer = l.answers[0]
	} else if l.otherwise != nil {
		return l.otherwise
	}
	return func(throttle.Request) Answer { return answer }
}

// now returns the answer, at the present time by default.
func (a Answer) now() (throttle.Decision, error) {
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
	return answer(req).now()
}

// Start takes the next answer and waits for its start. If ctx ends the wait, the grant is refunded.
func (l *Limiter) Start(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	d, err := l.Decide(ctx, req)
	if err != nil || !d.Allowed {
		return d, err
	}
	if err := sleep(ctx, req, d.Wait); err != nil {
		return throttle.Decision{}, errors.Join(err, l.Refund(ctx, d.Grant))
	}
	return d, nil
}

// Wait takes answers until one allows. In between it waits for as long as each denial says, half a second if that is
// throttle.Never, and a quarter of a second after throttle.ErrUnavailable. A denial until after ctx's deadline ends it at once,
// with throttle.ErrMaxWait, and so does any other error.
func (l *Limiter) Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error) {
	for {
		req.ID = l.named(req.ID)
		d, err := l.Start(ctx, req)
		pause := max(d.RetryAfter, time.Millisecond)
		deadline, ends := ctx.Deadline()
		switch {
		case errors.Is(err, throttle.ErrUnavailable):
			d, pause = throttle.Decision{RetryAfter: outagePause}, outagePause
		case err != nil || d.Allowed:
			return d, err
		case d.RetryAfter == throttle.Never:
			pause, req.ID = neverPause, ""
		case ends && pause > time.Until(deadline):
			return d, fmt.Errorf("%w: allowed in %s, and the context ends before: %w", throttle.ErrMaxWait, d.RetryAfter, context.DeadlineExceeded)
		default:
			req.ID = ""
		}
		if err := sleep(ctx, throttle.Request{}, pause); err != nil {
			return d, err
		}
	}
}

const (
	neverPause  = 500 * time.Millisecond // after a denial that no clock ends
	outagePause = 250 * time.Millisecond // after an outage
)

// sleep waits for d as a real limiter does, and calls req's OnWait and BeforeStart.
func sleep(ctx context.Context, req throttle.Request, d time.Duration) error {
	if req.BeforeStart != nil {
		defer req.BeforeStart()
	}
	if d <= 0 {
		return ctx.Err()
	}
	if req.OnWait != nil {
		defer req.OnWait(d)()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// named returns id, or a new one if it is empty.
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

// Lease returns a context that LoseLeases ends, and a lease whose release does nothing. A zero grant holds nothing, and the
// context is ctx itself.
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
