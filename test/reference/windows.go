package reference

import (
	"slices"
)

// units are what was charged at one start.
type units struct {
	id    string
	start int64
	leave int64 // the moment from which they do not count any more
	count int64
}

// charged are the units of one rule that may count yet.
type charged struct{ list []units }

func (c *charged) refund(_ int64, id string) {
	c.list = slices.DeleteFunc(c.list, func(u units) bool { return u.id == id })
}

func (c *charged) forget(now int64) {
	c.list = slices.DeleteFunc(c.list, func(u units) bool { return u.leave <= now })
}

func (c *charged) reset(now int64) int64 {
	for _, u := range c.list {
		now = max(now, u.leave)
	}
	return now
}

func (c *charged) held(t int64) (n int64) {
	for _, u := range c.list {
		if u.leave > t {
			n += u.count
		}
	}
	return n
}

// moments are t and, in order, the later moments at which units leave.
func (c *charged) moments(t int64) []int64 {
	moments := []int64{t}
	for _, u := range c.list {
		if u.leave > t {
			moments = append(moments, u.leave)
		}
	}
	slices.Sort(moments)
	return moments
}

// sliding is a sliding window: "Time is cut into cells of grain; a unit counts from its start and
// leaves per after the end of its cell."
type sliding struct {
	rule  Rule
	per   int64 // the window with the pad and the margin
	grain int64
	charged
}

func newSliding(r Rule, pad int64) *sliding {
	s := &sliding{rule: r, per: r.Per + pad + r.Margin}
	s.grain = grain(r.Limit, s.per)
	return s
}

// grain is the length of a cell: "per/2^35 for a limit of at most 128, per/200 for one of at most ten
// million, per/128 above that, rounded up".
func grain(limit, per int64) int64 {
	cells := int64(128)
	switch {
	case limit <= 128:
		cells = 1 << 35
	case limit <= 10_000_000:
		cells = 200
	}
	return (per + cells - 1) / cells
}

func (s *sliding) first(_ func(int64) int64, t, c int64) int64 {
	for _, m := range s.moments(t) {
		if s.held(m)+c <= s.rule.Limit {
			return m
		}
	}
	return Never
}

func (s *sliding) charge(now, start, c int64, id string) {
	s.forget(now)
	end := (start + s.grain - 1) / s.grain * s.grain // a start on the edge of two cells is of the earlier
	s.list = append(s.list, units{id, start, end + s.per, c})
}

func (s *sliding) remaining(now int64) int64 { return max(0, s.rule.Limit-s.held(now)) }

// window is a fixed window: "At most limit units in each window of per since the epoch. The last
// slack (pad and margin) of a window admits nothing." On use, "a window begins with the first start after the window
// before it. It is per and one slack long, and its last two slacks admit nothing". After a refund "a window in which
// nothing is left is none. One that has units left stays where it is".
type window struct {
	rule          Rule
	length, slack int64
	charged       // units leave when their window ends
}

func newWindow(r Rule, pad int64) *window {
	slack := min(pad+r.Margin, r.Per/2)
	if r.OnUse {
		return &window{rule: r, length: r.Per + slack, slack: 2 * slack}
	}
	return &window{rule: r, length: r.Per, slack: slack}
}

// begin is when the window begins that t belongs to. On use that is a window that is known, "or the one that was opened
// ahead less than a length later", or its own.
func (w *window) begin(t int64) int64 {
	if !w.rule.OnUse {
		return t - t%w.length
	}
	begin := t + w.length
	for _, u := range w.list {
		if u.leave > t {
			begin = min(begin, u.leave-w.length)
		}
	}
	if begin == t+w.length {
		return t
	}
	return begin
}

func (w *window) count(begin int64) (n int64) {
	for _, u := range w.list {
		if u.leave == begin+w.length {
			n += u.count
		}
	}
	return n
}

func (w *window) first(_ func(int64) int64, t, c int64) int64 {
	if c > w.rule.Limit {
		return Never
	}
	for {
		begin := w.begin(t)
		end := begin + w.length
		t = max(t, begin)
		if t < end-w.slack && w.count(begin)+c <= w.rule.Limit {
			return t
		}
		t = end
	}
}

func (w *window) charge(now, s, c int64, id string) {
	w.forget(now)
	w.list = append(w.list, units{id, s, w.begin(s) + w.length, c})
}

func (w *window) remaining(now int64) int64 { return max(0, w.rule.Limit-w.count(w.begin(now))) }

// places is a concurrency rule: one place for each run, until it is released or its lease ends.
type places struct {
	rule Rule
	charged
}

// first: "a place that is free when a lease ends is granted to nobody ahead of that: its run may renew".
func (p *places) first(known func(int64) int64, t, _ int64) int64 {
	for _, m := range p.moments(t) {
		if p.remaining(known(m)) > 0 {
			return m
		}
	}
	return Never
}

func (p *places) charge(now, s, _ int64, id string) {
	p.forget(now)
	p.refund(now, id)
	p.list = append(p.list, units{id, s, s + p.rule.Lease, 1})
}

func (p *places) remaining(now int64) int64 {
	return max(0, p.rule.Limit-p.held(now))
}
