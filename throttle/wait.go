package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Start is Decide that also waits for a granted start: when it returns an allowed decision, the run must begin at once. A start that came
// too late for a rule on its path (see Config.StartTolerance), because a timer, a reply or a processor was late, is refunded and decided
// again under a new attempt id. So Decision.Grant names the grant, and req.ID may not. This repeats until a start is in time or a limit
// denies it: lateness is never a denial. Each repetition costs two round trips, and one for a task that can wait.
//
// A denial, or a start further away than req.MaxDelay, is a Decision, and changes nothing. If the scope is paused during the wait, a start
// that was granted more than 250 ms ahead is taken back, and any start if this process has reported the API's pause; a task that can wait
// is to join again (Decision.Joins). Errors are those of Decide. If ctx ends during the wait, the units are given back and the error is
// ctx's; At and Wait of the Decision are then those of the missed start. Costs what Decide costs, and for a start that is granted more than
// 250 ms ahead one more round trip, which the starts of a scope share and which delays none.
func (l *Limiter) Start(ctx context.Context, req Request) (Decision, error) {
	place := int64(0)
	for tries := 1; ; tries++ {
		d, handed := l.handed(ctx, &req)
		req.Waiter.Granted = nil
		if !handed {
			l.startLater(&req)
			if err := l.decideOnly(ctx, &req, &d); err != nil || !d.Allowed {
				return d, err
			}
		}
		paused, err := l.untilStart(ctx, &req, &d)
		if err != nil {
			return Decision{Binding: -1, At: d.At, Wait: d.Wait, Handed: d.Handed, place: d.place}, errors.Join(err, l.takeBack(ctx, &d, true))
		}
		if paused || l.overtaken(req.Scope, d) {
			if err := l.takeBack(ctx, &d, true); err != nil {
				return Decision{Binding: -1}, err
			} else if req.Waiter.ID != "" {
				return Decision{Binding: -1, At: d.At, Wait: d.Wait, Joins: true, HadTurn: true, Handed: d.Handed, place: max(place, d.place)}, nil
			}
			req.ID = ""
			continue
		}
		if l.inTime(&d) {
			l.evaluateShadows(&d, &req, 0)
			if l.cfg.OnSpent != nil {
				l.reportSpent(&d, &req)
			}
			return d, nil
		}
		late := time.Since(d.begins)
		place = max(place, d.place)
		if err := l.miss(ctx, &req, &d, place); err != nil {
			return Decision{Binding: -1}, err
		}
		req.ID = ""
		if req.late = l.after(&d, late, tries); req.late.from > 0 {
			req.MaxDelay = max(req.MaxDelay, min(longestLeeway, untilDeadline(ctx)))
		}
	}
}

// miss has the next decision about a request give back the start that it came too late for: a bucket then keeps its charge. What is
// no task's comes back now.
func (l *Limiter) miss(ctx context.Context, req *Request, d *Decision, place int64) error {
	if req.Waiter.ID == "" {
		return l.takeBack(ctx, d, false)
	}
	if req.missed = ""; !d.Handed {
		g := d.Grant
		req.missed = wire.GrantText(g.start, place, g.plan.Shape, g.places, g.plan.Path, g.costText())
	}
	return nil
}

// takeBack gives a start back that cannot be used. One that is in flight comes back with the next decision about its task.
func (l *Limiter) takeBack(ctx context.Context, d *Decision, tells bool) error {
	if d.Handed {
		return nil
	}
	return l.giveBack(ctx, d.Grant, tells)
}

// Wait blocks until req is granted and its start has come. It holds a goroutine during the wait; for
// asynq tasks use package worker instead.
//
// It returns an error that wraps ErrMaxWait, at once and without a charge, if the wait is known to end less than Config.StartTolerance
// before ctx's deadline, or to outlast a rule's max_wait. If ctx ends first, it returns ctx's error, and the units are given back. Other
// errors are those of Decide. It waits out an outage under a closed rule, as long as max_wait allows. A changed policy applies at once.
// Costs one round trip for each time it asks.
func (l *Limiter) Wait(ctx context.Context, req Request) (Decision, error) {
	p, err := l.prepare(&req)
	if err != nil {
		return Decision{}, err
	}
	began := time.Now()
	ahead := max(req.MaxDelay, waitAhead)
	for {
		changed := l.PolicyChanged()
		// A start is taken only where it would not outlast anybody's patience.
		req.MaxDelay = min(ahead, p.patience(time.Since(began)), l.untilLastStart(ctx))
		d, err := l.Start(ctx, req)
		var pause time.Duration
		switch {
		case err == nil && d.Allowed:
			return d, nil
		case err == nil:
			err = tooLong(untilDeadline(ctx), l.untilLastStart(ctx), d, time.Since(began))
			pause = d.RetryDelay(req.MaxDelay)
			req.ID = ""
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

// RetryDelay returns after how long a caller that accepts starts up to ahead should repeat a denied request: a little before RetryAfter if
// a clock ends the denial. If only a raised limit, the end of a run or a call that goes first after a guessed pause ends it, the delay is
// about half a second, of which a tenth is random, so that callers do not come back together. It does no I/O.
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

// untilLastStart returns how long a start may be away that ctx lets run. A start on the deadline itself
// would be charged, waited for and refunded, so the last one is as much before it as it may come late.
func (l *Limiter) untilLastStart(ctx context.Context) time.Duration {
	left := untilDeadline(ctx)
	if left == Never {
		return left
	}
	return max(0, left-max(0, l.cfg.StartTolerance))
}

// tooLong refuses a wait that is known to end after the last start before a deadline, or to outlast a rule that it is for.
func tooLong(deadline, last time.Duration, d Decision, waited time.Duration) error {
	if known := d.atLeast(); known > last {
		where := "after"
		if known <= deadline {
			where = "too close to"
		}
		return fmt.Errorf("%w: allowed in %s, %s the context's deadline in %s: %w",
			ErrMaxWait, known, where, deadline.Round(time.Millisecond), context.DeadlineExceeded)
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

// atLeast returns how long a denied request is known to wait, 0 where nothing is known: a
// place under a concurrency rule may come free at any moment, long before its lease ends.
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

// sleepUntil waits for d, until ctx ends, with its error, or until something is closed.
func sleepUntil(ctx context.Context, d time.Duration, closed <-chan struct{}) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
