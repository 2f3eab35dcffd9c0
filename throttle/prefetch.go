package throttle

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/internal/answers"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// stock is units of a scope that this process has charged before anybody asked for them, see Rule.Prefetch: one call, a draw, charges many,
// and requests take them without a call. They are used within the prefetch of their charge or refunded. It is safe for concurrent use.
// Source: docs/algorithms.md#prefetch
type stock struct {
	within time.Duration

	mu      sync.Mutex
	draw    *draw       // the last one, nil if nothing is left of it
	latest  []RuleState // what Redis said last while there was a draw; each slice is never changed
	room    int64       // what the rule with the fewest units had left when Redis was asked last; 0 after a denial
	drawing bool        // a draw is on its way
	resumes time.Time   // no draw before: units of the last one were not used in time
	turn    int         // how often the stock was emptied; a draw from before goes back too

	since         time.Time // begin of the present span, of lookBack prefetches
	asked, before int64     // units asked for in that span, and in the one before
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
	// leastDraw is how many times what is asked for a draw is at least: a smaller one saves little.
	leastDraw = 3
	// lookBack is over how many prefetches demand is counted, and restFor for how many nothing is drawn after units were left over.
	lookBack, restFor = 4, 20
)

// newStock returns the stock of a path, nil unless all its rules prefetch: a concurrency rule and a pause do not.
func newStock(bounds []policy.MatchedRule) *stock {
	least := answers.Grace
	for _, b := range bounds {
		least = min(least, b.Rule.Prefetch)
	}
	if least == 0 || len(bounds) == 0 {
		return nil
	}
	return &stock{within: least}
}

// prefetch returns how long before its start a unit may be charged on the plan's path.
func (p *plan) prefetch() time.Duration {
	if p.stock == nil {
		return 0
	}
	return p.stock.within
}

// stocks reports whether a request may be served from the plan's stock: it asks for a number of units, without an id, and is no task's.
func (p *plan) stocks(req *Request) bool {
	return p.stock != nil && req.Waiter.ID == "" && len(req.Costs) == 0 && !req.late.any() && req.ID == ""
}

// fromStock takes the units of a request from the stock, and draws more if that pays. Otherwise the request is decided as any other.
func (l *Limiter) fromStock(ctx context.Context, p *plan, req *Request, d *Decision) error {
	o := p.stock.order(time.Now(), req.Cost, p.Most)
	if o.from != nil {
		o.handOut(req, d)
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

// draw charges units for a request and for those that are expected next. It decides nothing if so many are denied.
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
	valid := p.stock.within // or as long as the plan holds
	if p.Until != wire.Never {
		valid = min(valid, us(p.Until-a.now))
	}
	begins := got.begins
	one.until, one.left, got.begins = a.sent.Add(valid), o.units-req.Cost, a.sent
	p.stock.put(l, one, a.replied, o)
	o.handOut(req, d)
	d.begins = begins
	l.observe(ctx, d, a.replied.Sub(a.sent), nil)
	return true, nil
}

// order is what a stock has for a request.
type order struct {
	from   *draw       // that has the units, nil for none
	states []RuleState // what Redis said last
	held   int64       // how many units the stock holds besides
	units  int64       // or else how many to draw, 0 for none
	turn   int         // of the stock
}

// handOut makes the decision of a request from the draw that has its units.
func (o *order) handOut(req *Request, d *Decision) {
	*d = o.from.decision
	d.Rules = slices.Clone(o.states)
	for i := range d.Rules {
		d.Rules[i].Remaining += o.held
	}
	d.Binding = fewestLeft(d.Rules)
	d.Grant.id, d.Grant.price, d.Grant.known = d.Grant.id+"."+NewID(), price{each: req.Cost}, &known{}
}

// order takes units from the draw if it has as many. most is the largest cost that the rules admit.
func (s *stock) order(now time.Time, cost, most int64) (o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(now, cost)
	if one := s.draw; one != nil && one.left >= cost && now.Before(one.until) {
		if one.left -= cost; one.left == 0 {
			s.draw = nil
		}
		return order{from: one, states: s.latest, held: one.left}
	}
	if s.drawing || now.Before(s.resumes) {
		return order{}
	}
	if units := min(cost+s.expected(now)-s.held(), s.room/2, most); units >= leastDraw*cost {
		s.drawing = true
		return order{units: units, turn: s.turn}
	}
	return order{}
}

func (s *stock) held() int64 {
	if s.draw == nil {
		return 0
	}
	return s.draw.left
}

// count notes that units were asked for.
func (s *stock) count(now time.Time, cost int64) {
	span := lookBack * s.within
	switch age := now.Sub(s.since); {
	case age < span:
	case age < 2*span:
		s.since, s.before, s.asked = s.since.Add(span), s.asked, 0
	default:
		s.since, s.before, s.asked = now, 0, 0
	}
	s.asked = min(s.asked+cost, mostAsked)
}

// expected returns how many units are most likely to be used in time: as many as lately, less what that varies by if callers come at
// random, and less a quarter.
func (s *stock) expected(now time.Time) int64 {
	rest := 1 - float64(now.Sub(s.since))/float64(lookBack*s.within)
	asked := (float64(s.asked) + float64(s.before)*rest) / lookBack
	return int64(min(asked-math.Sqrt(asked), asked*3/4))
}

// put takes a draw in, unless the stock was emptied since it was ordered, or it came too late. What is left of the draw before goes back.
func (s *stock) put(l *Limiter, one *draw, now time.Time, o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.from, o.states = one, one.decision.Rules
	late := !now.Before(one.until)
	if late {
		s.resumes = now.Add(restFor * s.within)
	}
	switch {
	case one.left == 0:
	case late || o.turn != s.turn:
		go l.giveBackDraw(one)
	default:
		go l.giveBackDraw(s.draw)
		s.draw, s.latest = one, one.decision.Rules
		time.AfterFunc(one.until.Sub(now), func() { l.giveBackDraw(s.over(one)) })
	}
	o.held = s.held()
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
	if s.room = room; d.Allowed && s.draw != nil {
		s.latest = slices.Clone(d.Rules)
	}
}

// over takes a draw out whose time has ended, and returns nil if it is used up.
func (s *stock) over(one *draw) *draw {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draw != one {
		return nil
	}
	s.draw, s.resumes = nil, time.Now().Add(restFor*s.within)
	return one
}

// empty takes the draw out, and the one on its way goes back when it comes.
func (s *stock) empty() *draw {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.draw
	s.draw, s.turn = nil, s.turn+1
	return gone
}

// giveBackDraw refunds what is left of a draw that was taken out. If Redis does not answer, it stays spent.
func (l *Limiter) giveBackDraw(one *draw) {
	if one == nil {
		return
	}
	g := one.decision.Grant
	g.price = price{each: one.left}
	_ = l.Refund(context.Background(), g)
}

// emptyStocks refunds, in the background, what is in stock for the scopes whose keys have a prefix.
func (l *Limiter) emptyStocks(prefix string) {
	if !l.Policy().Prefetches() {
		return
	}
	l.scopes.Each(func(s *wire.Scope) {
		if p, _ := s.Attached.(*plan); p != nil && p.stock != nil && (prefix == "" || p.Prefix == prefix) {
			go l.giveBackDraw(p.stock.empty())
		}
	})
}
