package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// A start is late when its run would begin after the moment that it was granted for: a timer or a reply came late, or the goroutine waited
// for a processor. Whether that matters is for the rules on its path to say; docs/algorithms.md#late-starts has the proofs.

const (
	// longestLeeway bounds leeway, and how far ahead a start is asked for since another was late.
	longestLeeway = 250 * time.Millisecond
)

// room is how long a bucket takes for half of what may start at once beside a cost: for so long
// it can leave open when a start comes. Others wait for as long as that is not known.
func roomOf(r policy.Rule, cost int64) time.Duration {
	if wire.Widened(r) > 0 || r.Limit == 0 || cost >= r.Capacity() {
		return 0
	}
	room, _ := wire.MulDiv((r.Capacity()-cost)/2, r.Per.Microseconds(), r.Limit)
	return us(min(room, longestLeeway.Microseconds()))
}

// handed returns the decision of a task that dispatch has granted its start, and that need not ask: if the limits are what they
// were then, and the start can be in time.
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
	d = Decision{
		Allowed: true, Handed: true, Wait: g.Wait, At: time.UnixMicro(g.Granted), Binding: -1, Grant: l.grantOf(p, g, asks.price()), Rules: slices.Clone(p.states),
		begins: g.Starts, under: p, place: g.Score,
	}
	l.begins(&d)
	if !l.inTime(&d) {
		return Decision{}, false
	}
	if d.Grant.probe {
		l.reports.probe(p, d.begins)
	}
	l.observe(ctx, &d, 0, nil)
	return d, true
}

// grantOf is what dispatch has granted.
func (l *Limiter) grantOf(p *plan, g *waitlist.Granted, cost price) Grant {
	return Grant{
		scope: p.Scope.Scope.String(), id: g.Lease(), plan: p, price: cost, start: g.Start, places: g.Places, known: &known{},
		from: g.Starts, probe: g.Probe,
	}
}

// inTime says whether the run of a grant may begin now. A quicker reply may make later starts earlier by the clock's
// uncertainty, so that counts as late already, up to half the pad.
func (l *Limiter) inTime(d *Decision) bool {
	if l.cfg.StartTolerance == 0 || d.Degraded || d.under == nil {
		return true
	}
	l.begins(d)
	late := time.Since(d.begins) + min(d.under.clock.Uncertainty(), l.cfg.StartTolerance/2)
	return late <= max(l.cfg.StartTolerance, l.tolerance(d))
}

// begins corrects when a start comes by what is known of the server's clock by now: a reply that was quicker than all before
// it shows that the start has come sooner, and that it is later than it seemed.
func (l *Limiter) begins(d *Decision) {
	if d.begins.IsZero() || l.clock() != "" {
		return
	}
	if at := d.under.clock.ToLocal(time.UnixMicro(d.Grant.start)); at.Before(d.begins) {
		d.begins = at
	}
}

// startLater asks for a start that is so far ahead that its reply can be there in time, where replies are long in coming.
func (l *Limiter) startLater(req *Request) {
	if req.late.any() || l.cfg.StartTolerance == 0 {
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
	if slowest = min(slowest, longestLeeway); slowest > l.cfg.StartTolerance+p.prefetch() {
		req.late.from = slowest.Truncate(time.Microsecond)
		req.MaxDelay = max(req.MaxDelay, min(2*slowest, longestLeeway))
		req.Waiter.MaxDelay = max(req.Waiter.MaxDelay, min(2*slowest, longestLeeway))
	}
}

// minds says whether any rule of a path could be exceeded by a start that is late.
func (p *plan) minds(pad time.Duration, req *Request) bool {
	return slices.ContainsFunc(p.Rules, func(b policy.MatchedRule) bool {
		return b.Rule.Algorithm == policy.SlidingWindow || b.Rule.OpensOnUse || b.Rule.Algorithm == policy.TokenBucket && !wire.ManyFit(b.Rule, pad, max(req.Cost, defaultCost))
	})
}

// tolerance is by how much a start may be late without any rule minding, where that is more
// than the pad: a prefetch widens a window as the pad does. Lateness is told by this process's clock, which may be late itself: up to the
// end of a window, or of a rule's hours, a pad is left.
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
				most = min(most, pad+b.Rule.Prefetch+d.leeway)
			}
		case policy.SlidingWindow:
			most = min(most, pad+b.Rule.Prefetch+d.leeway)
		case policy.FixedWindow:
			ends := start - start%max(numbers[2], 1) + numbers[2]
			if b.Rule.OpensOnUse {
				ends = place + numbers[1]
			}
			most = min(most, us(ends-start-numbers[3])+b.Rule.Prefetch)
			if b.Rule.OpensOnUse && place == start { // it opens its window: the API must see it when ours opens
				most = min(most, pad+b.Rule.Prefetch)
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

// patientTries is how many starts in a row must have been too late before the next is asked for at the cost of limits that bind.
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

// after is how to ask for a start after one that was granted came too late, for the so manieth time: with leeway of twice its lateness, or,
// where a bucket on the path has no room for that, for one that is so far ahead. Either takes something of limits that bind, so that there
// a start at once is asked for once more before.
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

// A start that was granted for longer ahead than pauseGrace is looked after once more, so long before it comes, by a look that others may
// share who spend from the scope. So no start begins more than pauseGrace after its API's pause was told, whoever told it.
const (
	pauseLook  = 100 * time.Millisecond
	looksApart = 50 * time.Millisecond
)

// untilStart waits for a granted start. It is over at once where this process hears that an
// API has paused the scope, or one above it, since the start was granted.
func (l *Limiter) untilStart(ctx context.Context, req *Request, d *Decision) (paused bool, err error) {
	left := time.Until(d.begins)
	if left > 0 {
		l.reports.waiting.Add(1)
		defer l.reports.waiting.Add(-1)
	}
	if left > 0 && req.OnWait != nil {
		defer req.OnWait(left)()
	}
	look, before := d.Wait > pauseGrace, l.beforeStart(req, d)
	for {
		heard, overtaken := l.reports.since(d)
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
			l.lookAtPauses(d.under)
		}
		if look {
			left -= pauseLook
		}
		if req.BeforeStart != nil {
			left = min(left, time.Until(d.begins)-before)
		}
		if err := sleepUntil(ctx, left, heard); err != nil {
			return false, err
		}
	}
}

// beforeStart returns how long before a start its BeforeStart is called: a slow round trip, and some time for a busy machine.
func (l *Limiter) beforeStart(req *Request, d *Decision) time.Duration {
	if req.BeforeStart == nil || d.under == nil {
		return 0
	}
	return d.under.clock.RoundTrip() + l.cfg.StartTolerance
}

// lookAtPauses asks what pauses there are of a plan's scope and of those above it, and has those heard of them who wait. It is asked once
// for all who want to know in the same moment, and nobody is held up by it: where Redis does not answer, starts are as they were granted.
func (l *Limiter) lookAtPauses(p *plan) {
	if !l.reports.looks(p) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Timeout)
		defer cancel()
		levels := p.levels()
		fields := make([]string, len(levels))
		for i, level := range levels {
			fields[i] = "P" + level
		}
		values, err := l.rdb.HMGet(ctx, wire.APIKey(p.Prefix), fields...).Result()
		if err != nil {
			return
		}
		at := l.serverTime(p.Prefix)
		for i, v := range values {
			text, _ := v.(string)
			if pause, is := wire.ReadPause(text); is && pause.Over() > at.UnixMicro() {
				l.reports.pause(p.Prefix+levels[i], time.UnixMicro(pause.Over()), at)
				l.emptyStocks(p.Prefix)
			}
		}
	}()
}

// deniedByPause notes a denial for an API's pause: where that is not known here, those who wait for a start are told of it.
func (l *Limiter) deniedByPause(p *plan) {
	if l.reports.waiting.Load() > 0 && l.reports.unknown(p) {
		l.lookAtPauses(p)
	}
}

// since tells whether a pause was heard of after a start was granted that is before its end, and returns what is closed when another one
// is. Whatever was decided later knew of the pause; when an attempt was that is answered once more, nobody knows.
func (h *reportCache) since(d *Decision) (next <-chan struct{}, overtaken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next == nil {
		h.next = make(chan struct{})
	}
	if len(h.pauses) == 0 || d.Degraded || d.At.IsZero() {
		return h.next, false
	}
	start := d.At.Add(d.Wait - d.overdue)
	for _, level := range d.under.levels() {
		one, known := h.pauses[d.under.Prefix+level]
		// By the server's clock an old pause would seem to be told later, and to hold on, since that
		// clock has stepped back: so it is also to be in force by one that nobody sets.
		holds := d.begins.Before(one.here.Add(pauseGrace))
		if known && holds && (d.replayed || !one.at.Before(d.At)) && one.until.After(start) {
			return h.next, true
		}
	}
	return h.next, false
}

// pause notes a pause of a scope, by its key, that was in force at a time of the server's, and tells those who wait for a start.
func (h *reportCache) pause(key string, until, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pauses = bounded(h.pauses)
	now := time.Now()
	h.pauses[key] = cachedPause{until: until, here: now.Add(until.Sub(at)), told: now, at: at}
	if h.next != nil {
		close(h.next)
		h.next = nil
	}
}

// looks says that it is time for a look at the pauses of a plan's scope, and takes it for made.
func (h *reportCache) looks(p *plan) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, key := time.Now(), p.Prefix+p.Path
	if at, known := h.looked[key]; known && now.Sub(at) < looksApart {
		return false
	}
	h.looked = bounded(h.looked)
	h.looked[key] = now
	return true
}

// unknown says that no pause is known for which the plan's scope may have been denied.
func (h *reportCache) unknown(p *plan) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, level := range p.levels() {
		if one, known := h.pauses[p.Prefix+level]; known && time.Now().Before(one.here) {
			return false
		}
	}
	return true
}

// pauseGrace is how long a start that was granted before a pause may still be ahead: with
// the notice of package policystore, it has come within a second of the change.
const pauseGrace = 250 * time.Millisecond

// overtaken says that a scope was paused while a start was waited for that was granted for longer ahead than a pause lets go.
func (l *Limiter) overtaken(scope string, d Decision) bool {
	if d.Wait <= pauseGrace {
		return false
	}
	p, err := l.plan(scope)
	return err == nil && len(p.Paused) > 0
}
