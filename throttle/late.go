package throttle

import (
	"github.com/headway-go/headway/throttle/policy"
	"math"
	"slices"
	"strconv"
	"time"
)

// A start is late when its run would begin after the moment that it was granted for: a timer
// or a reply came late, or the goroutine waited for a processor. Whether that matters is for
// the rules on its path to say; docs/algorithms.md#late-starts has the proofs.

const (
	// lateAtOnce is how many tasks of cost 1 can be late at the same time, at the most: as many
	// as all processes together run or hold.
	lateAtOnce = 1000
	// longestLeeway bounds leeway, and how far ahead a start is asked for since another was late.
	longestLeeway = 250 * time.Millisecond
)

// manyFit says that what passes a bucket within the pad is more than all that can be late at
// once. Its rate is one pad slower for that; see ruleParams.
func manyFit(r policy.Rule, pad time.Duration, cost int64) bool {
	if r.Algorithm != policy.TokenBucket || widened(r) > 0 || r.Limit < lateAtOnce || cost > math.MaxInt64/lateAtOnce {
		return false
	}
	units, _ := mulDiv(r.Limit, pad.Microseconds(), (r.Per + 2*pad).Microseconds())
	return units >= lateAtOnce*cost
}

// room is how long a bucket takes for half of what may start at once beside a cost: for so long
// it can leave open when a start comes. Others wait for as long as that is not known.
func roomOf(r policy.Rule, cost int64) time.Duration {
	if widened(r) > 0 || r.Limit == 0 || cost >= r.Capacity() {
		return 0
	}
	room, _ := mulDiv((r.Capacity()-cost)/2, r.Per.Microseconds(), r.Limit)
	return us(min(room, longestLeeway.Microseconds()))
}

// inTime says whether the run of a grant may begin now. A quicker reply may make later starts earlier by the clock's
// uncertainty, so that counts as late already, up to half the pad.
func (l *Limiter) inTime(d *Decision) bool {
	if l.cfg.StartTolerance == 0 || d.Degraded || d.under == nil {
		return true
	}
	l.begins(d)
	late := time.Since(d.begins) + min(d.under.clock(&l.skews).uncertainty(), l.cfg.StartTolerance/2)
	return late <= max(l.cfg.StartTolerance, l.tolerance(d))
}

// begins corrects when a start comes by what is known of the server's clock by now: a reply that was quicker than all before
// it shows that the start has come sooner, and that it is later than it seemed.
func (l *Limiter) begins(d *Decision) {
	if d.begins.IsZero() || l.clock() != "" {
		return
	}
	if at := d.under.clock(&l.skews).toLocal(time.UnixMicro(d.Grant.start)); at.Before(d.begins) {
		d.begins = at
	}
}

// startLater asks for a start that is so far ahead that its reply can be there in time, where replies are long in coming.
func (l *Limiter) startLater(req *Request) {
	if req.late.any() || l.cfg.StartTolerance == 0 {
		return
	}
	p, err := l.scopes.of(req.Scope)
	if err != nil || !p.minds(l.cfg.StartTolerance, req) {
		return
	}
	slowest := p.clock(&l.skews).slowest()
	if req.BeforeStart != nil {
		slowest += p.clock(&l.skews).roundTrip()
	}
	if slowest = min(slowest, longestLeeway); slowest > l.cfg.StartTolerance+p.prefetch() {
		req.late.from = slowest.Truncate(time.Microsecond)
		req.MaxDelay = max(req.MaxDelay, min(2*slowest, longestLeeway))
		req.Turn.MaxDelayQueued = max(req.Turn.MaxDelayQueued, min(2*slowest, longestLeeway))
	}
}

// minds says whether any rule of a path could be exceeded by a start that is late.
func (p *compiledScope) minds(pad time.Duration, req *Request) bool {
	return slices.ContainsFunc(p.bounds, func(b policy.MatchedRule) bool {
		return b.Rule.Algorithm == policy.SlidingWindow || b.Rule.OpensOnUse || b.Rule.Algorithm == policy.TokenBucket && !manyFit(b.Rule, pad, max(req.Cost, defaultCost))
	})
}

// tolerance is by how much a start may be late without any rule minding, where that is more
// than the pad: a prefetch widens a window as the pad does. Lateness is told by this process's clock, which may be late itself: up to the
// end of a window, or of a rule's hours, a pad is left.
func (l *Limiter) tolerance(d *Decision) time.Duration {
	p, pad, start := d.under, l.cfg.StartTolerance, d.Grant.start
	most := Never
	for i, b := range p.bounds {
		switch numbers := p.params[i].numbers; b.Rule.Algorithm {
		case policy.Concurrency:
			most = min(most, b.Rule.Lease/2) // its place is held until then
		case policy.TokenBucket:
			if !manyFit(b.Rule, pad, d.Grant.cost.at(i)) {
				most = min(most, pad+b.Rule.Prefetch+d.leeway)
			}
		case policy.SlidingWindow:
			most = min(most, pad+b.Rule.Prefetch+d.leeway)
		case policy.FixedWindow:
			ends := start - start%max(numbers[2], 1) + numbers[2]
			if b.Rule.OpensOnUse {
				ends = d.Grant.places[i] + numbers[1]
			}
			most = min(most, us(ends-start-numbers[3])+b.Rule.Prefetch)
			if b.Rule.OpensOnUse && d.Grant.places[i] == start { // it opens its window: the API must see it when ours opens
				most = min(most, pad+b.Rule.Prefetch)
			}
		case policy.Calendar:
			ends := numbers[2]
			if start >= ends {
				ends = numbers[3]
			}
			most = min(most, us(ends-start)-min(pad+b.Rule.Margin, cronPeriod/2))
		}
	}
	if p.hours.until != 0 {
		most = min(most, us(p.hours.until-start)-pad)
	}
	return most
}

// patientTries is how many starts in a row must have been too late before the next is asked for
// at the cost of limits that bind.
const patientTries = 2

// lateness is what is asked for after a start that was too late.
type lateness struct {
	// leeway is how much later than its start the run may begin. Sliding windows and buckets
	// count it as of that moment, as if it were longer by so much.
	leeway time.Duration
	// from is how far ahead the start must be at least.
	from time.Duration
}

func (l lateness) any() bool { return l != lateness{} }

// text is how scripts read it.
func (l lateness) text() string {
	switch {
	case l.leeway > 0:
		return "L" + strconv.FormatInt(l.leeway.Microseconds(), 10)
	case l.from > 0:
		return "F" + strconv.FormatInt(l.from.Microseconds(), 10)
	}
	return ""
}

// after is how to ask for a start after one that was granted came too late, for the so manieth
// time: with leeway of twice its lateness, or, where a bucket on the path has no room for that,
// for one that is so far ahead. Either takes something of limits that bind, so that there a
// start at once is asked for once more before.
func (l *Limiter) after(d *Decision, late time.Duration, tries int) lateness {
	most, binds, spaced := longestLeeway, false, false
	for i, b := range d.under.bounds {
		r, cost := b.Rule, d.Grant.cost.at(i)
		switch {
		case r.Algorithm == policy.SlidingWindow:
			most = min(most, r.Per/4)
		case r.Algorithm == policy.TokenBucket && !manyFit(r, l.cfg.StartTolerance, cost):
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

// widened is by how much the rule's window is longer than Per, but for the pad: by so much may starts be apart in
// how late they are after their charges.
func widened(r policy.Rule) time.Duration { return r.Margin + r.Prefetch }
