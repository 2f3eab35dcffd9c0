package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Wait blocks until req is granted and its start has come. It holds a goroutine during the wait; for
// asynq tasks use package worker instead.
//
// It returns an error that wraps ErrMaxWait, at once and without a charge, if the wait is known to end less than
// Config.StartTolerance before ctx's deadline, or to outlast a rule's max_wait. If ctx ends first, it returns ctx's error, and
// the units are given back. Other errors are those of Decide. It waits out an outage under a closed rule, as long as max_wait
// allows. A changed policy applies at once. It asks under the same attempt id each time. Costs one round trip for each time it asks.
func (l *Limiter) Wait(ctx context.Context, req Request) (Decision, error) {
	p, err := l.prepare(&req)
	if err != nil {
		return Decision{}, err
	}
	began := time.Now()
	ahead := max(req.MaxDelay, waitAhead)
	for {
		changed := l.PolicyChanged()
		// A start is taken only if neither a max_wait nor the deadline comes before it.
		req.MaxDelay = min(ahead, p.patience(time.Since(began)), l.untilLastStart(ctx))
		d, err := l.Start(ctx, req)
		var pause time.Duration
		switch {
		case err == nil && d.Allowed:
			return d, nil
		case err == nil:
			err = tooLong(untilDeadline(ctx), l.untilLastStart(ctx), d, time.Since(began))
			pause = d.RetryDelay(req.MaxDelay)
		case errors.Is(err, ErrUnavailable):
			if waited := time.Since(began); p.patience(waited) > 0 {
				err = nil
			} else {
				err = fmt.Errorf("%w: asked for %s: %w", ErrMaxWait, waited.Round(time.Millisecond), err)
			}
			pause = outagePause
		}
		if err != nil {
			return d, err
		}
		pause = min(pause, max(p.patience(time.Since(began)), time.Millisecond))
		if err := sleepUntil(ctx, pause, changed); err != nil {
			return Decision{Binding: -1}, err
		}
		if p, err = l.prepare(&req); err != nil {
			return Decision{Binding: -1}, err
		}
	}
}

const (
	waitAhead   = 250 * time.Millisecond
	outagePause = 250 * time.Millisecond
	// recheck is how often a wait that no clock ends is looked at again.
	recheck = 500 * time.Millisecond
)

// RetryDelay returns after how long a caller that accepts starts up to ahead should repeat a denied request: a little before
// RetryAfter if a clock ends the denial, and otherwise about half a second, of which a tenth is random, so that callers do not
// come back together. It does no I/O.
func (d Decision) RetryDelay(ahead time.Duration) time.Duration {
	pause := d.RetryAfter
	if r, ok := d.BindingRule(); ok && r.Algorithm == policy.Concurrency || pause == Never || d.probes {
		pause = min(pause, recheck)
		return pause - pause/10 + rand.N(pause/10+1)
	}
	return max(pause-ahead/2, time.Millisecond)
}

// untilDeadline returns how long ctx lasts.
func untilDeadline(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return Never
}

// untilLastStart returns how far away a start may be that ctx lets run. It may come late by the tolerance, and still before the
// deadline.
func (l *Limiter) untilLastStart(ctx context.Context) time.Duration {
	left := untilDeadline(ctx)
	if left == Never {
		return left
	}
	return max(0, left-l.cfg.StartTolerance)
}

// tooLong refuses a wait that is known to end after the last start before a deadline, or to outlast a rule's max_wait.
func tooLong(deadline, last time.Duration, d Decision, waited time.Duration) error {
	if known := d.atLeast(); known > last {
		return fmt.Errorf("%w: allowed in %s, and the context ends in %s: %w",
			ErrMaxWait, known, deadline.Round(time.Millisecond), context.DeadlineExceeded)
	}
	for i := range d.Rules {
		r := d.Rules[i]
		switch {
		case d.probes:
			r.Limited, r.RetryAfter = true, Never
		case d.Paused:
			r.Limited, r.RetryAfter = true, max(r.RetryAfter, d.RetryAfter)
		case r.Algorithm == policy.Concurrency:
			r.RetryAfter = Never // a run may end before its lease
		}
		if r.Limited && r.MaxWait > 0 && (waited >= r.MaxWait || r.RetryAfter != Never && waited+r.RetryAfter > r.MaxWait) {
			more := "asks for " + r.RetryAfter.String() + " more"
			if r.RetryAfter == Never {
				more = "cannot tell how much longer"
			}
			return fmt.Errorf("%w: rule %s of %s %s after %s; its max_wait is %s",
				ErrMaxWait, r.Rule, r.Scope, more, waited.Round(time.Millisecond), r.MaxWait)
		}
	}
	return nil
}

// atLeast returns how long a denied request is known to wait. A place under a concurrency rule may come free at any moment.
func (d Decision) atLeast() (wait time.Duration) {
	places := d.probes
	for _, r := range d.Rules {
		switch {
		case !r.Limited:
		case r.Algorithm == policy.Concurrency:
			places = true
		case r.RetryAfter != Never:
			wait = max(wait, r.RetryAfter)
		}
	}
	if (!places || d.Paused && !d.probes) && d.RetryAfter != Never {
		wait = d.RetryAfter // of all rules together
	}
	return wait
}
