package throttle

import (
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// A start is late if its run would begin after the granted moment. Whether that matters depends on the rules of its path:
// docs/algorithms.md#late-starts has the proofs.

// longestLeeway bounds leeway, and how far ahead a start is asked for since another was late.
const longestLeeway = 250 * time.Millisecond

// roomOf returns the leeway that a bucket can give a start: the time in which it refills half of what may start at once beside it.
func roomOf(r policy.Rule, cost int64) time.Duration {
	if r.Margin > 0 || r.Limit == 0 || cost >= r.Capacity() {
		return 0
	}
	room, _ := wire.MulDiv((r.Capacity()-cost)/2, r.Per.Microseconds(), r.Limit)
	return us(min(room, longestLeeway.Microseconds()))
}

// InTime reports whether the run of an allowed decision may still begin. Start has checked that; a caller that does more before its
// run asks again last, and if it may not, calls Start with Request.Missed. It does no I/O.
func (l *Limiter) InTime(d Decision) bool {
	d.under = d.Grant.plan
	return l.inTime(&d)
}

// inTime reports whether the run of a grant may begin now. The clock's uncertainty counts as lateness, up to half the tolerance.
func (l *Limiter) inTime(d *Decision) bool {
	if l.cfg.StartTolerance == 0 || d.Degraded || d.under == nil {
		return true
	}
	l.begins(d)
	late := time.Since(d.begins) + min(d.under.clock.Uncertainty(), l.cfg.StartTolerance/2)
	return late <= max(l.cfg.StartTolerance, l.tolerance(d))
}

// begins corrects the time of a start by what is known of the server's clock by now: a quicker reply may show that it comes sooner.
func (l *Limiter) begins(d *Decision) {
	if d.begins.IsZero() || l.clock() != "" {
		return
	}
	if at := d.under.clock.ToLocal(time.UnixMicro(d.Grant.start)); at.Before(d.begins) {
		d.begins = at
	}
}

// startLater asks for a start far enough ahead for its reply to arrive in time, if Redis is far away.
func (l *Limiter) startLater(req *Request) {
	if req.late != (lateness{}) || l.cfg.StartTolerance == 0 {
		return
	}
	p, err := l.plan(req.Scope)
	if err != nil || !p.minds(l.cfg.StartTolerance, req) {
		return
	}
	slowest := p.clock.Slowest()
	if req.BeforeStart != nil {
		slowest += p.clock.RoundTrip()
	}
	if slowest = min(slowest, longestLeeway); slowest > l.cfg.StartTolerance {
		req.late.from = slowest.Truncate(time.Microsecond)
		req.MaxDelay = max(req.MaxDelay, min(2*slowest, longestLeeway))
		req.Waiter.MaxDelay = max(req.Waiter.MaxDelay, min(2*slowest, longestLeeway))
	}
}

// minds reports whether a late start could exceed any rule of a path, or of a member of its pool.
func (p *plan) minds(pad time.Duration, req *Request) bool {
	minds := func(b policy.MatchedRule) bool {
		return b.Rule.Algorithm == policy.SlidingWindow || b.Rule.OpensOnUse ||
			b.Rule.Algorithm == policy.TokenBucket && !wire.ManyFit(b.Rule, pad, max(req.Cost, defaultCost))
	}
	return slices.ContainsFunc(p.Rules, minds) ||
		p.Pool != nil && slices.ContainsFunc(p.Pool.Members, func(m wire.Member) bool { return slices.ContainsFunc(m.Rules, minds) })
}

// tolerance returns by how much a start may be late without exceeding a rule, where that is more than the start tolerance. This
// process's clock may be late itself: up to the end of a window, or of a rule's hours, a start tolerance is left.
func (l *Limiter) tolerance(d *Decision) time.Duration {
	p, pad, start := d.under, l.cfg.StartTolerance, d.Grant.start
	most := Never
	for i, b := range p.Rules {
		place := int64(0)
		if i < len(d.Grant.places) {
			place = d.Grant.places[i]
		}
		switch _, numbers := wire.Numbers(b.Rule, pad, d.At); b.Rule.Algorithm {
		case policy.Concurrency:
			most = min(most, b.Rule.Lease/2) // its place is held until then
		case policy.TokenBucket:
			if !wire.ManyFit(b.Rule, pad, d.Grant.price.under(b.Rule)) {
				most = min(most, pad+d.leeway)
			}
		case policy.SlidingWindow:
			most = min(most, pad+d.leeway)
		case policy.FixedWindow:
			ends := start - start%max(numbers[2], 1) + numbers[2]
			if b.Rule.OpensOnUse {
				ends = place + numbers[1]
			}
			most = min(most, us(ends-start-numbers[3]))
			if b.Rule.OpensOnUse && place == start { // it opens its window: the API must see it when ours opens
				most = min(most, pad)
			}
		case policy.Calendar:
			most = min(most, us(numbers[3]-start)-us(numbers[4]))
		}
	}
	if p.Changes() != wire.Never {
		most = min(most, us(p.Changes()-start)-pad)
	}
	return most
}

// patientTries is how many starts in a row must have been too late before one is asked for that takes something of limits that
// bind.
const patientTries = 2

// lateness is what is asked for after a start that was too late.
type lateness struct {
	leeway time.Duration // how much later than its start the run may begin: sliding windows and buckets count it as of then
	from   time.Duration // how far ahead the start must be at least
}

// after returns how to ask again after so many starts came too late: with a leeway of twice the last lateness or, where a bucket
// on the path has no room for that, so far ahead. Either takes something of limits that bind: they are asked for a start at once
// first.
func (l *Limiter) after(d *Decision, late time.Duration, tries int) lateness {
	most, binds, spaced := longestLeeway, false, false
	for i, b := range d.under.Rules {
		r, cost := b.Rule, d.Grant.price.under(b.Rule)
		switch {
		case r.Algorithm == policy.SlidingWindow:
			most = min(most, r.Per/4)
		case r.Algorithm == policy.TokenBucket && !wire.ManyFit(r, l.cfg.StartTolerance, cost):
			room := roomOf(r, cost)
			if spaced = spaced || room < l.cfg.StartTolerance; room >= l.cfg.StartTolerance {
				most = min(most, room)
			}
		case r.OpensOnUse: // its window begins with its first start, which then must not be late
			spaced = true
		default:
			continue
		}
		binds = binds || i < len(d.Rules) && 2*d.Rules[i].Remaining < d.Rules[i].Limit
	}
	switch {
	case (binds || spaced) && tries < patientTries:
		return lateness{}
	case spaced:
		return lateness{from: min(2*late, longestLeeway).Truncate(time.Microsecond)}
	}
	return lateness{leeway: min(2*late, most).Truncate(time.Microsecond)}
}
