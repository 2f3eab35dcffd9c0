package throttle

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// stock is units of a scope that this process has charged before anybody asked for them, see Rule.Prefetch: one
// call charges many, and whoever asks next takes some without a call. They are used within the prefetch of their
// charge or given back. It is safe for concurrent use.
// Source: docs/algorithms.md#prefetch
type stock struct {
	within time.Duration

	mu      sync.Mutex
	draws   []*draw     // that have units left, oldest first
	held    int64       // how many units those are
	latest  []RuleState // what Redis said last, while there are any; each slice is never changed
	room    int64       // what the rule with the fewest units had left when Redis was asked last; 0 after a denial
	drawing bool        // a draw is on its way
	resumes time.Time   // no draw before: the last one came too late
	turn    int         // how often all was given back; what comes of a draw from before goes back too
	closed  bool        // the policy is another one
	timer   *time.Timer // gives back what was not used in time

	since         time.Time // begin of the span at hand, of lookBack prefetches
	asked, before int64     // units asked for in that span, and in the one before
	saved         int       // calls that draws have saved lately, less those that giving back was worth
}

// draw is units that one call has charged.
type draw struct {
	decision Decision  // of the call, with the grant of all units; never changed
	until    time.Time // no unit is handed out from then on; counted from before the call was sent
	left     int64
}

const (
	// mostAsked keeps sums far from overflow.
	mostAsked = 1 << 50
	// leastDraw is how many times what is asked for a draw is at least: a smaller one gains little, and costs a
	// call more where it is left over.
	leastDraw = 3
	// lookBack is how many prefetches it is counted over what is asked for.
	lookBack = 4
	// backCosts is how many calls it is worth to give back what is left of a draw, and mostSaved how many are counted.
	backCosts = 8
	mostSaved = 8 * backCosts
	// drawsLater is for how long nothing is drawn since a draw was of no use when it came.
	drawsLater = time.Second
)

// newStock returns the stock of a path, nil unless all its rules prefetch: a concurrency rule and a pause do not.
func newStock(bounds []policy.MatchedRule) *stock {
	if len(bounds) == 0 {
		return nil
	}
	least := pauseGrace
	for _, b := range bounds {
		least = min(least, b.Rule.Prefetch)
	}
	if least == 0 {
		return nil
	}
	return &stock{within: least}
}

// prefetch is how long before its start a unit may be charged on the plan's path, 0 where none may be.
func (p *plan) prefetch() time.Duration {
	if p.stock == nil {
		return 0
	}
	return p.stock.within
}

// stocks says whether a request may be served from the plan's stock: it asks for a number of units, nobody asks
// again for its id, and it does not wait in line.
func (p *plan) stocks(req *Request) bool {
	return p.stock != nil && req.Waiter.ID == "" && len(req.Costs) == 0 && !req.late.any() && req.ID == ""
}

// fromStock takes the units of a request from the stock, and fills that where it is worth it. Otherwise the
// request is decided as any other.
func (l *Limiter) fromStock(ctx context.Context, p *plan, req *Request, d *Decision) error {
	o := p.stock.order(time.Now(), req.Cost, p.Most)
	if o.from != nil {
		p.handOut(&o, req, d)
		d.Prefetched = true
		l.observe(ctx, d, 0, nil)
		return nil
	}
	if o.units > 0 {
		if decided, err := l.draw(ctx, p, req, &o, d); decided {
			return err
		}
	}
	return l.decide(ctx, p, req, d)
}

// draw charges units for a request and for those that are expected next. It does not decide where so many are
// denied, or were charged under the rules of another time.
func (l *Limiter) draw(ctx context.Context, p *plan, req *Request, o *order, d *Decision) (decided bool, err error) {
	defer p.stock.end()
	a := p.ask(&Request{Scope: req.Scope, Cost: o.units})
	if err = l.sender.decide(ctx, a); err != nil {
		*d, err = l.withoutRedis(ctx, p, req, err)
		l.observe(ctx, d, a.replied.Sub(a.sent), err)
		return true, err
	}
	one := &draw{}
	if err = l.answered(ctx, a, &one.decision); err != nil {
		d.Binding = -1
		return true, err
	}
	got := &one.decision
	if !got.Allowed {
		return false, nil
	}
	begins := got.begins
	one.until, one.left, got.begins = a.sent.Add(p.valid(got.At)), o.units-req.Cost, a.sent
	p.stock.put(l, one, a.replied, o)
	p.handOut(o, req, d)
	d.begins = begins
	l.observe(ctx, d, a.replied.Sub(a.sent), nil)
	return true, nil
}

// valid is for how long units may be handed out that were charged at a time of the server's: no longer than the
// plan holds.
func (p *plan) valid(at time.Time) time.Duration {
	if p.Until == wire.Never {
		return p.stock.within
	}
	return min(p.stock.within, us(p.Until-at.UnixMicro()))
}

// handOut makes the decision of a request from the draw that has its units.
func (p *plan) handOut(o *order, req *Request, d *Decision) {
	*d = o.from.decision
	d.Rules = slices.Clone(o.states)
	for i := range d.Rules {
		d.Rules[i].Remaining += o.held
	}
	d.Binding = fewestLeft(d.Rules)
	d.Grant.id, d.Grant.price, d.Grant.known = d.Grant.id+"."+NewID(), price{each: req.Cost}, &known{}
}

// order is what comes of a request to a stock.
type order struct {
	from   *draw       // that has the units; nil where none has as many
	states []RuleState // what Redis said last
	held   int64       // how many units the stock holds besides
	units  int64       // or else how many to draw; 0 where that is no better than to ask for those alone
	turn   int         // of the stock
}

// order takes units from the oldest draw that has as many. Most is the largest cost that the rules admit.
func (s *stock) order(now time.Time, cost, most int64) (o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(now, cost)
	for i, one := range s.draws {
		if one.left < cost || !now.Before(one.until) {
			continue
		}
		one.left, s.held, s.saved = one.left-cost, s.held-cost, min(s.saved+1, mostSaved)
		if one.left == 0 {
			s.draws = slices.Delete(s.draws, i, i+1)
		}
		return order{from: one, states: s.latest, held: s.held}
	}
	if s.drawing || s.closed || s.saved < 0 || now.Before(s.resumes) {
		return order{}
	}
	if units := min(cost+s.expected(now)-s.held, s.room/2, most); units >= leastDraw*cost {
		s.drawing = true
		return order{units: units, turn: s.turn}
	}
	return order{}
}

// count notes that units were asked for. Where giving back was worth more calls than draws have saved there is no
// draw until as many prefetches have passed.
func (s *stock) count(now time.Time, cost int64) {
	span := lookBack * s.within
	switch age := now.Sub(s.since); {
	case age < span:
	case age < 2*span:
		s.since, s.before, s.asked = s.since.Add(span), s.asked, 0
		s.saved = max(s.saved, min(s.saved+lookBack, 0))
	default:
		s.since, s.before, s.asked = now, 0, 0
		s.saved = max(s.saved, 0)
	}
	s.asked = min(s.asked+cost, mostAsked)
}

// expected is how many units are most likely to be asked for and used in time: as many as lately, less what that
// varies by where callers come at random, and less a quarter.
func (s *stock) expected(now time.Time) int64 {
	rest := 1 - float64(now.Sub(s.since))/float64(lookBack*s.within)
	asked := (float64(s.asked) + float64(s.before)*rest) / lookBack
	return int64(min(asked-math.Sqrt(asked), asked*3/4))
}

// put takes a draw in, unless all was given back since it was ordered or it came too late: then it goes back.
func (s *stock) put(l *Limiter, one *draw, now time.Time, o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.from, o.states = one, one.decision.Rules
	switch {
	case one.left == 0:
	case o.turn != s.turn: // or it is closed
		go l.giveBackDraws([]*draw{one})
	case !now.Before(one.until):
		s.resumes = now.Add(drawsLater)
		go l.giveBackDraws([]*draw{one})
	default:
		s.draws, s.held, s.latest = append(s.draws, one), s.held+one.left, one.decision.Rules
		s.wake(l, now)
	}
	o.held = s.held
}

// end notes that no draw is on its way.
func (s *stock) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawing = false
}

// saw notes what Redis said of the rules.
func (s *stock) saw(d *Decision) {
	room := int64(0)
	if d.Allowed && d.Binding >= 0 {
		room = d.Rules[d.Binding].Remaining // the fewest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room = room; d.Allowed && s.held > 0 {
		s.latest = slices.Clone(d.Rules)
	}
}

// wake has the timer go off when the oldest draw is over; s.mu is held.
func (s *stock) wake(l *Limiter, now time.Time) {
	until := s.draws[0].until
	for _, one := range s.draws[1:] {
		if one.until.Before(until) {
			until = one.until
		}
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(until.Sub(now), func() { l.giveBackDraws(s.over(l)) })
		return
	}
	s.timer.Reset(until.Sub(now))
}

// over takes out what is not handed out any more.
func (s *stock) over(l *Limiter) (gone []*draw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.draws = slices.DeleteFunc(s.draws, func(one *draw) bool {
		if now.Before(one.until) {
			return false
		}
		gone, s.held = append(gone, one), s.held-one.left
		s.saved -= backCosts
		return true
	})
	if len(s.draws) > 0 {
		s.wake(l, now)
	}
	return gone
}

// empty takes everything out, and what is drawn by now goes back when it comes.
func (s *stock) empty() (gone []*draw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone = s.draws
	s.draws, s.held, s.turn = nil, 0, s.turn+1
	return gone
}

// close is empty for good.
func (s *stock) close() (gone []*draw) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.empty()
}

// giveBackDraws gives back what is left of draws that were taken out. Where Redis cannot be told it stays spent.
func (l *Limiter) giveBackDraws(gone []*draw) {
	for _, one := range gone {
		g := one.decision.Grant
		g.price = price{each: one.left}
		_ = l.Refund(context.Background(), g)
	}
}

// emptyStocks gives back what plans have in stock.
func (l *Limiter) emptyStocks(plans []*plan, empty func(*stock) []*draw) {
	var gone []*draw
	for _, p := range plans {
		gone = append(gone, empty(p.stock)...)
	}
	if len(gone) > 0 {
		go l.giveBackDraws(gone)
	}
}

// stocked returns the plans that may have something in stock, and that are so.
func (l *Limiter) stocked(are func(*plan) bool) (some []*plan) {
	if !l.Policy().Prefetches() {
		return nil
	}
	l.scopes.Each(func(s *wire.Scope) {
		if p, _ := s.Attached.(*plan); p != nil && p.stock != nil && are(p) {
			some = append(some, p)
		}
	})
	return some
}

// emptyBelow gives back what is in stock for a level, by its path, and below it.
func (l *Limiter) emptyBelow(prefix, level string) {
	l.emptyStocks(l.stocked(func(p *plan) bool {
		rest, is := strings.CutPrefix(p.Path, level)
		return is && p.Prefix == prefix && (rest == "" || rest[0] == '/')
	}), (*stock).empty)
}

// emptyUnder gives back what is in stock under a rule, by its name.
func (l *Limiter) emptyUnder(prefix, rule string) {
	l.emptyStocks(l.stocked(func(p *plan) bool {
		return p.Prefix == prefix && slices.ContainsFunc(p.Rules, func(b policy.MatchedRule) bool { return wire.RuleName(b) == rule })
	}), (*stock).empty)
}
