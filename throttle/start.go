package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/answers"
	"github.com/headway-go/headway/internal/wire"
)

// Start is Decide that also waits for a granted start: when it returns an allowed decision, the run must begin at once. A start
// that came too late for a rule on its path (see Config.StartTolerance) is refunded and decided again, under the same attempt id,
// until one is in time or a limit denies it: lateness is never a denial. Each repetition costs two round trips.
//
// If the scope is paused during the wait, a start that was granted more than 250 ms ahead is taken back, and any start if this
// process has reported the API's pause; a task that can wait is to join again (Decision.Joins). Errors are those of Decide. If
// ctx ends during the wait, the units are given back and the error is ctx's; At and Wait of the Decision are then those of the
// missed start. Costs what Decide costs, and for a start that is granted more than 250 ms ahead one more round trip, which the
// starts of a scope share and which delays none.
func (l *Limiter) Start(ctx context.Context, req Request) (Decision, error) {
	place, tries := int64(0), 0
	again := func(d *Decision) error {
		late := time.Since(d.begins)
		place, tries = max(place, d.place), tries+1
		if err := l.miss(ctx, &req, d, place); err != nil {
			return err
		}
		if req.late = l.after(d, late, tries); req.late.from > 0 {
			req.MaxDelay = max(req.MaxDelay, min(longestLeeway, untilDeadline(ctx)))
		}
		return nil
	}
	if d := req.Missed; d != nil {
		d.under, d.Handed, req.Waiter.Granted = d.Grant.plan, false, nil // a grant of dispatch was claimed for the run
		d.Grant.shadow.to(shadowRefunded)
		if err := again(d); err != nil {
			return Decision{Binding: -1}, err
		}
	}
	for {
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
			continue
		}
		if l.inTime(&d) {
			l.evaluateShadows(&d, &req, 0)
			if l.cfg.OnSpent != nil {
				l.reportSpent(&d, &req)
			}
			return d, nil
		}
		if err := again(&d); err != nil {
			return Decision{Binding: -1}, err
		}
	}
}

// miss gives back a start that came too late. That of a task comes back with its next decision: a bucket then keeps its charge.
func (l *Limiter) miss(ctx context.Context, req *Request, d *Decision, place int64) error {
	if req.Waiter.ID == "" {
		return l.takeBack(ctx, d, false)
	}
	if req.missed = ""; !d.Handed {
		g := d.Grant
		req.missed = wire.GrantText(g.start, place, g.plan.Shape, g.places, g.plan.Path, g.costText(), g.plan.memberKey())
	}
	return nil
}

// takeBack gives a start back that cannot be used. One that is in flight comes back with the next decision about its task.
func (l *Limiter) takeBack(ctx context.Context, d *Decision, wakes bool) error {
	if d.Handed {
		return nil
	}
	return l.giveBack(ctx, d.Grant, wakes)
}

// handed returns the decision for a start that dispatch has granted, if the limits are what they were then and it can be in time.
func (l *Limiter) handed(ctx context.Context, req *Request) (d Decision, ok bool) {
	g := req.Waiter.Granted
	if g == nil || g.Scope == nil {
		return d, false
	}
	asks := *req // prepare fills in what only one that asks needs
	p, err := l.prepare(&asks)
	if err != nil || p.Scope != g.Scope {
		return d, false
	}
	if p = p.with(p.Pool.Member(g.Member)); p.memberKey() != g.Member {
		return d, false
	}
	d = Decision{
		Allowed: true, Handed: true, Wait: g.Wait, At: time.UnixMicro(g.Granted), Binding: -1, Rules: slices.Clone(p.states),
		begins: g.Starts, under: p, place: g.Score,
		Grant: Grant{
			scope: p.Scope.Scope.String(), id: g.Lease(), plan: p, price: asks.price(), start: g.Start, places: g.Places, known: &known{},
			from: g.Starts, probe: g.Probe,
		},
	}
	if d.Member = d.Grant.Member(); d.Member != "" {
		d.Pool = p.pool
	}
	l.begins(&d)
	if !l.inTime(&d) {
		return Decision{}, false
	}
	if d.Grant.probe {
		l.reports.Probe(p.Scope, d.begins)
	}
	l.observe(ctx, &d, 0, nil)
	return d, true
}

// pauseLook is how long before its start the pauses of a scope are looked up, if it was granted more than answers.Grace ahead. So
// no start begins more than answers.Grace after any process has reported an API's pause.
const pauseLook = 100 * time.Millisecond

// untilStart waits for a granted start, or until this process hears that an API has paused the scope or one above it.
func (l *Limiter) untilStart(ctx context.Context, req *Request, d *Decision) (paused bool, err error) {
	left := time.Until(d.begins)
	if left > 0 {
		defer l.reports.Waiting()()
	}
	if left > 0 && req.OnWait != nil {
		defer req.OnWait(left)()
	}
	start := d.start()
	look, before := d.Wait > answers.Grace, time.Duration(0)
	if req.BeforeStart != nil && d.under != nil { // a slow round trip, and some time for a busy machine
		before = d.under.clock.RoundTrip() + l.cfg.StartTolerance
	}
	for {
		overtaken, next := l.reports.Overtaken(start)
		left = time.Until(d.begins)
		if !overtaken && req.BeforeStart != nil && left <= before && ctx.Err() == nil {
			req.BeforeStart()
			req.BeforeStart = nil
			continue
		}
		if overtaken || left <= 0 {
			return overtaken, ctx.Err()
		}
		if look && left <= pauseLook {
			look = false
			l.reports.Look(d.under.Scope)
		}
		if look {
			left -= pauseLook
		}
		if req.BeforeStart != nil {
			left = min(left, time.Until(d.begins)-before)
		}
		if err := sleepUntil(ctx, left, next); err != nil {
			return false, err
		}
	}
}

// start returns the granted start, for pauses that may overtake it.
func (d *Decision) start() answers.Start {
	s := answers.Start{Granted: d.At, At: d.At.Add(d.Wait - d.overdue), Begins: d.begins, Replayed: d.replayed}
	if !d.Degraded && d.under != nil {
		s.Scope = d.under.Scope
	}
	return s
}

// overtaken reports whether the policy has paused the scope of a start that was granted more than answers.Grace ahead.
func (l *Limiter) overtaken(scope string, d Decision) bool {
	if d.Wait <= answers.Grace {
		return false
	}
	p, err := l.plan(scope)
	return err == nil && len(p.Paused) > 0
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
	case <-closed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
