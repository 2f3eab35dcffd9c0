// Package reference is a second opinion on every decision: a model of each algorithm, written
// from README.md, docs/algorithms.md, docs/limits.md and docs/costs.md alone. It is plain and
// slow: it keeps every charge, works in exact fractions, and searches where the limiter
// calculates. It shares no code with the limiter, and its author had not read it.
//
// Its tests drive the limiter on a real Redis and on miniredis through random histories, and
// compare each answer to the microsecond. Where the pages do not say enough to write the model,
// the pages are at fault.
package reference

import (
	"fmt"
	"math"
	"math/big"
	"slices"
)

// Never is a moment that no clock reaches.
const Never = math.MaxInt64

// Algorithm is the way a rule counts, by its name in limits.yaml.
type Algorithm string

// The algorithms of docs/algorithms.md.
const (
	TokenBucket   Algorithm = "token-bucket"
	SlidingWindow Algorithm = "sliding-window"
	FixedWindow   Algorithm = "fixed-window"
	CalendarQuota Algorithm = "calendar"
	Concurrency   Algorithm = "concurrency"
)

// Rule is a rule of limits.yaml. All times are in microseconds.
type Rule struct {
	Algorithm Algorithm
	Limit     int64
	Per       int64
	Burst     int64
	Margin    int64
	Lease     int64
	Rollover  int64
	Spread    bool
	OnUse     bool // a fixed window that opens on use
	// Begins returns when the period of a calendar that t is in begins, and when it ends.
	Begins func(t int64) (from, to int64)
}

// Capacity is the largest cost that the rule can ever admit.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket {
		return r.Burst
	}
	return r.Limit
}

// Answer is what the model says of a request.
type Answer struct {
	Allowed bool
	Start   int64 // the joint start, Never where no clock tells
	Rules   []State
	Binding int // on denial, the rule whose own start is the latest; ties: the first
}

// State is what one rule says.
type State struct {
	Limited   bool
	Start     int64 // the first moment at which this rule alone admits the cost
	Remaining int64 // after the decision
	Reset     int64 // the moment at which the rule is as if nothing had been taken
}

// counter is the state of one rule at one scope.
type counter interface {
	// first returns the first moment from t on at which c units may start, each moment judged by
	// what is known at known of it.
	first(known func(int64) int64, t, c int64) int64
	// charge counts c units that start at s, under an id.
	charge(now, s, c int64, id string)
	// refund takes back what was charged last under the id.
	refund(now int64, id string)
	// remaining is how many units are left at now.
	remaining(now int64) int64
	// reset is the moment at which nothing is left of what was charged.
	reset(now int64) int64
}

func newCounter(r Rule, pad int64) counter {
	switch r.Algorithm {
	case TokenBucket:
		return newBucket(r, pad)
	case SlidingWindow:
		return newSliding(r, pad)
	case FixedWindow:
		if r.OnUse {
			return newOpening(r, pad)
		}
		return newFixed(r, pad)
	case CalendarQuota:
		return newCalendar(r, pad)
	case Concurrency:
		return &places{rule: r}
	}
	panic(fmt.Sprintf("no algorithm %q", r.Algorithm))
}

// World holds the rules by the names of their places in the policy, and what was charged.
type World struct {
	pad      int64
	counters map[string]counter
}

// NewWorld returns a world in which nothing was charged. Pad is Config.StartTolerance in microseconds.
func NewWorld(pad int64) *World { return &World{pad: pad, counters: map[string]counter{}} }

// Charge is what one rule of a path is asked for. Place is the scope at which it counts and its name.
type Charge struct {
	Place string
	Rule  Rule
	Units int64
}

func (w *World) counter(c Charge) counter {
	if w.counters[c.Place] == nil {
		w.counters[c.Place] = newCounter(c.Rule, w.pad)
	}
	return w.counters[c.Place]
}

// Decide answers a request and, where take says so, charges it: under all rules of the path at
// the joint start, or under none.
func (w *World) Decide(now, ahead int64, id string, path []Charge, take bool) Answer {
	a := Answer{Start: w.joint(now, path, func(int64) int64 { return now }), Binding: -1}
	if a.Allowed = a.Start != Never && a.Start-now <= ahead; !a.Allowed {
		a.Start = w.joint(now, path, func(t int64) int64 { return t })
	}
	for _, c := range path {
		start := w.counter(c).first(func(t int64) int64 { return t }, now, c.Units)
		a.Rules = append(a.Rules, State{Limited: start > now, Start: start})
	}
	for _, c := range path {
		if a.Allowed && take {
			w.counter(c).charge(now, a.Start, c.Units, id)
		}
	}
	for i, c := range path {
		a.Rules[i].Remaining, a.Rules[i].Reset = w.counter(c).remaining(now), w.counter(c).reset(now)
	}
	if !a.Allowed {
		for i := range a.Rules {
			if a.Binding < 0 || a.Rules[i].Start > a.Rules[a.Binding].Start {
				a.Binding = i
			}
		}
	}
	return a
}

// joint asks each rule for the first moment from now on at which it admits the cost; the latest of
// those is tried on all again until it moves no more. What a start ahead may rest on is what is
// known now, and a wait is until the request would be allowed: known says as of when it counts.
func (w *World) joint(now int64, path []Charge, known func(t int64) int64) int64 {
	for s := now; ; {
		latest := s
		for _, c := range path {
			latest = max(latest, w.counter(c).first(known, s, c.Units))
		}
		if latest == s || latest == Never {
			return latest
		}
		s = latest
	}
}

// Refund takes back what was charged under the id at the places of a path.
func (w *World) Refund(now int64, id string, path []Charge) {
	for _, c := range path {
		w.counter(c).refund(now, id)
	}
}

// Vague says that the pages leave open what giving back comes to, since a calendar on the path may
// have forgotten the period of the start, or nothing was granted in the one at hand: it hangs on
// whether the process that gives back has heard that a period began.
func (w *World) Vague(now int64, path []Charge, start int64) bool {
	return slices.ContainsFunc(path, func(c Charge) bool {
		k, ok := w.counter(c).(*calendar)
		if !ok {
			return false
		}
		here, _ := k.rule.Begins(now)
		return start < k.oldest(now) || k.rule.Rollover > 0 && !slices.Contains(k.seen, here)
	})
}

// bucket is a token bucket, by the moment z at which it is empty again.
//
// "A charge of c at s sets z' = max(z, s) + c·q/p and is made only if z' ≤ s + burst·q/p."
type bucket struct {
	rule  Rule
	unit  *big.Rat // the time in which one unit drains, q/p
	slack *big.Rat // the time that is demanded before a unit: what the burst pays of margin + pad
	z     *big.Rat // nil while nothing was charged
	at    int64    // the latest start, or a moment later: "z is never before at"
	marks []marked // the charges, oldest first
	since int64    // a mark
	low   *big.Rat // the least level that charges after since met, as a time; nil for none
}

// plenty is how many units must pass within a pad for it to count twice.
const plenty = 1000

func newBucket(r Rule, pad int64) *bucket {
	b := &bucket{rule: r, slack: new(big.Rat)}
	slack, rest := r.slack(pad)
	per := r.Per + rest
	if r.Margin == 0 && product(r.Limit, pad).Cmp(product(plenty, r.Per+2*pad)) >= 0 {
		per += pad
	}
	b.slack.SetInt64(slack)
	if r.Limit > 0 {
		b.unit = unitTime(r, per, slack)
	}
	return b
}

// slack is what a bucket's burst pays of σ = margin + pad, "(burst − 1)·(per + σ)/(limit + burst − 1), rounded
// down and at most σ", and the rest, for which its per is longer. Without a margin the burst pays nothing.
func (r Rule) slack(pad int64) (slack, rest int64) {
	late := r.Margin + pad
	if r.Margin > 0 {
		paid := product(r.Burst-1, r.Per+late)
		if paid.Quo(paid, big.NewInt(max(1, r.Limit+r.Burst-1))); paid.Cmp(big.NewInt(late)) > 0 {
			return late, 0
		}
		slack = paid.Int64()
	}
	return slack, late - slack
}

// unitTime is q/p: per/limit, "in lowest terms where p ≤ 2^25, p·slack < 2^52 and burst·q < 2^52.
// Otherwise q is the largest that these allow, p what that comes to, rounded down, and q what p
// comes to, rounded up".
func unitTime(r Rule, per, slack int64) *big.Rat {
	const most = 1<<52 - 1
	exact := big.NewRat(per, r.Limit)
	pMost, qMost := min(1<<25, most/max(slack, 1)), most/r.Burst
	if exact.Denom().Cmp(big.NewInt(pMost)) <= 0 && exact.Num().Cmp(big.NewInt(qMost)) <= 0 {
		return exact
	}
	q := product(pMost, per)
	q.Quo(q, big.NewInt(r.Limit))
	if q.Cmp(big.NewInt(qMost)) > 0 {
		q.SetInt64(qMost)
	}
	if q.Sign() == 0 {
		q.SetInt64(1)
	}
	p := q.Mul(q, big.NewInt(r.Limit)).Quo(q, big.NewInt(per)).Int64()
	p = min(max(p, 1), pMost)
	up := ceil(new(big.Rat).Mul(exact, new(big.Rat).SetInt64(p)))
	return big.NewRat(up, p)
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

func (b *bucket) times(c int64) *big.Rat { return new(big.Rat).Mul(b.unit, new(big.Rat).SetInt64(c)) }

func (b *bucket) first(_ func(int64) int64, t, c int64) int64 {
	if b.unit == nil || c > b.rule.Burst {
		return Never
	}
	if b.z == nil {
		return t
	}
	from := new(big.Rat).Sub(b.z, b.times(b.rule.Burst-c))
	return max(t, ceil(from.Add(from, b.slack)))
}

// charge also notes what a refund needs: "low is the least level met by charges after since, and since moves on when a charge meets
// less than one unit. A charge whose start is no later than one before it moves neither".
func (b *bucket) charge(_, s, c int64, id string) {
	z := new(big.Rat).SetInt64(s)
	if b.z != nil && b.z.Cmp(z) > 0 {
		z = b.z
	}
	met := new(big.Rat).Sub(z, new(big.Rat).SetInt64(s))
	later := s > b.at
	b.at = max(s, b.at+1)
	if later && met.Cmp(b.unit) < 0 {
		b.since, b.low = b.at, nil
	} else if later {
		b.low = least(b.low, met)
	}
	if b.at-b.since >= 1<<40 { // "since is at most 12 days before the latest start"
		b.since = b.at
	}
	b.marks = append(b.marks, marked{id, b.at, b.times(c)})
	b.z = new(big.Rat).Add(z, b.times(c))
	if at := new(big.Rat).SetInt64(b.at); b.z.Cmp(at) < 0 {
		b.z = at
	}
}

// marked is a charge: its mark, and what it takes, as a time.
type marked struct {
	id    string
	mark  int64
	takes *big.Rat
}

func least(list ...*big.Rat) (out *big.Rat) {
	for _, x := range list {
		if x != nil && (out == nil || x.Cmp(out) < 0) {
			out = x
		}
	}
	return out
}

// refund gives back "min(c·q, the level now, and the larger of low and c·q - p·(T - s))", and c·q for the grant charged last: "of a
// grant from before since low is 0". s is since, or 0.1 s before its mark if that is later.
func (b *bucket) refund(now int64, id string) {
	i := slices.IndexFunc(b.marks, func(m marked) bool { return m.id == id })
	if i < 0 {
		return
	}
	m, low, since := b.marks[i], b.low, b.since
	if m.mark < b.since {
		low, since = new(big.Rat), 0
	}
	back := least(m.takes, new(big.Rat).Sub(b.z, new(big.Rat).SetInt64(max(now, b.at))))
	if m.mark < b.at && low != nil {
		drained := max(now, b.at) - max(since, m.mark-100_000)
		if rest := new(big.Rat).Sub(m.takes, new(big.Rat).SetInt64(drained)); rest.Cmp(low) > 0 {
			low = rest
		}
		back = least(back, low)
	}
	if back.Sign() < 0 {
		back = new(big.Rat)
	}
	if m.mark < b.at && b.low != nil {
		if b.low = new(big.Rat).Sub(b.low, back); b.low.Sign() < 0 {
			b.low = new(big.Rat)
		}
	}
	b.z = new(big.Rat).Sub(b.z, back)
}

func (b *bucket) remaining(now int64) int64 {
	if b.unit == nil {
		return 0
	}
	level := new(big.Rat)
	if b.z != nil {
		level.Add(b.z, b.slack).Sub(level, new(big.Rat).SetInt64(now))
	}
	if level.Sign() <= 0 {
		return b.rule.Burst
	}
	return max(0, b.rule.Burst-ceil(level.Quo(level, b.unit)))
}

func (b *bucket) reset(now int64) int64 {
	if b.unit == nil {
		return Never
	}
	if b.z == nil {
		return now
	}
	return max(now, ceil(new(big.Rat).Add(b.z, b.slack)))
}

func ceil(r *big.Rat) int64 {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

// unit is c units that were charged at one start.
type units struct {
	id    string
	start int64
	leave int64 // the moment from which they do not count any more
	count int64
}

// sliding is a sliding window: "Time is cut into cells of grain; a unit counts from its start and
// leaves per after the end of its cell."
type sliding struct {
	rule  Rule
	per   int64 // the window with the pad and the margin
	grain int64
	list  []units
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

func (s *sliding) held(t int64) (n int64) {
	for _, u := range s.list {
		if u.leave > t {
			n += u.count
		}
	}
	return n
}

func (s *sliding) first(_ func(int64) int64, t, c int64) int64 {
	moments := []int64{t}
	for _, u := range s.list {
		if u.leave > t {
			moments = append(moments, u.leave)
		}
	}
	slices.Sort(moments)
	for _, m := range moments {
		if s.held(m)+c <= s.rule.Limit {
			return m
		}
	}
	return Never
}

func (s *sliding) charge(now, start, c int64, id string) {
	s.list = slices.DeleteFunc(s.list, func(u units) bool { return u.leave <= now })
	end := (start + s.grain - 1) / s.grain * s.grain // a start on the edge of two cells is of the earlier
	s.list = append(s.list, units{id, start, end + s.per, c})
}

func (s *sliding) refund(_ int64, id string) { s.list = without(s.list, id) }

func (s *sliding) remaining(now int64) int64 { return max(0, s.rule.Limit-s.held(now)) }

func (s *sliding) reset(now int64) int64 { return latest(now, s.list) }

func without(list []units, id string) []units {
	return slices.DeleteFunc(list, func(u units) bool { return u.id == id })
}

func latest(now int64, list []units) int64 {
	for _, u := range list {
		now = max(now, u.leave)
	}
	return now
}

// fixed is a fixed window: "At most limit units in each window of per since the epoch. The last
// slack (pad and margin) of a window admits nothing."
type fixed struct {
	rule  Rule
	slack int64
	list  []units
}

func newFixed(r Rule, pad int64) *fixed { return &fixed{rule: r, slack: min(pad+r.Margin, r.Per/2)} }

func (f *fixed) begin(t int64) int64 { return t - t%f.rule.Per }

func (f *fixed) count(t int64) (n int64) {
	for _, u := range f.list {
		if f.begin(u.start) == f.begin(t) {
			n += u.count
		}
	}
	return n
}

func (f *fixed) first(_ func(int64) int64, t, c int64) int64 {
	if c > f.rule.Limit {
		return Never
	}
	for {
		end := f.begin(t) + f.rule.Per
		if t < end-f.slack && f.count(t)+c <= f.rule.Limit {
			return t
		}
		t = end
	}
}

func (f *fixed) charge(now, s, c int64, id string) {
	f.list = slices.DeleteFunc(f.list, func(u units) bool { return u.leave <= now })
	f.list = append(f.list, units{id, s, f.begin(s) + f.rule.Per, c})
}

func (f *fixed) refund(_ int64, id string) { f.list = without(f.list, id) }

func (f *fixed) remaining(now int64) int64 {
	return max(0, f.rule.Limit-f.count(now))
}

func (f *fixed) reset(now int64) int64 { return latest(now, f.list) }

// opening is a fixed window that opens on use: "a window begins with the first start after the window
// before it. It is per and one slack long, and its last two slacks admit nothing."
type opening struct {
	rule          Rule
	length, slack int64
	list          []units // each leaves when its window ends
}

func newOpening(r Rule, pad int64) *opening {
	slack := min(pad+r.Margin, r.Per/2)
	return &opening{rule: r, length: r.Per + slack, slack: 2 * slack}
}

// begin is when the window begins that t belongs to: one that is known, "or the one that was opened ahead less
// than a length later", or its own.
func (o *opening) begin(t int64) int64 {
	begin := t + o.length
	for _, u := range o.list {
		if u.leave > t {
			begin = min(begin, u.leave-o.length)
		}
	}
	if begin == t+o.length {
		return t
	}
	return begin
}

func (o *opening) count(begin int64) (n int64) {
	for _, u := range o.list {
		if u.leave == begin+o.length {
			n += u.count
		}
	}
	return n
}

func (o *opening) first(_ func(int64) int64, t, c int64) int64 {
	if c > o.rule.Limit {
		return Never
	}
	for {
		begin := o.begin(t)
		end := begin + o.length
		t = max(t, begin)
		if t < end-o.slack && o.count(begin)+c <= o.rule.Limit {
			return t
		}
		t = end
	}
}

func (o *opening) charge(_, s, c int64, id string) {
	o.list = append(o.list, units{id, s, o.begin(s) + o.length, c})
}

// refund: "A window in which nothing is left is none. One that has units left stays where it is".
func (o *opening) refund(_ int64, id string) { o.list = without(o.list, id) }

func (o *opening) remaining(now int64) int64 { return max(0, o.rule.Limit-o.count(o.begin(now))) }

func (o *opening) reset(now int64) int64 { return latest(now, o.list) }

// calendar is a calendar's quota.
type calendar struct {
	rule  Rule
	slack int64
	list  []units
	seen  []int64 // the begins of the periods in which, or for which, something was granted
	// pace is the moment before which nothing starts, with Spread; it was another before the last charge.
	pace, was int64
}

func newCalendar(r Rule, pad int64) *calendar { return &calendar{rule: r, slack: pad + r.Margin} }

func (k *calendar) count(from int64) (n int64) {
	_, end := k.rule.Begins(from)
	for i := range k.list {
		if k.list[i].leave == end {
			n += k.list[i].count
		}
	}
	return n
}

// carry is what the periods before the one that begins at from left over: "carry = min(rollover,
// limit + carry of the period before − its units)", and "0 before the period has begun". "Periods in
// a row in which nothing was granted count as one."
func (k *calendar) carry(now, from int64) int64 {
	if len(k.seen) == 0 || from <= k.seen[0] || now < from {
		return 0
	}
	before, _ := k.rule.Begins(from - 1)
	if slices.Contains(k.seen, before) {
		return k.over(now, before)
	}
	last, _ := slices.BinarySearch(k.seen, before)
	return min(k.rule.Rollover, k.rule.Limit+k.over(now, k.seen[last-1]))
}

// over is what a period leaves over.
func (k *calendar) over(now, from int64) int64 {
	return max(0, min(k.rule.Rollover, k.rule.Limit+k.carry(now, from)-k.count(from)))
}

func (k *calendar) left(now, t int64) int64 {
	from, _ := k.rule.Begins(t)
	return k.rule.Limit + k.carry(now, from) - k.count(from)
}

func (k *calendar) first(known func(int64) int64, t, c int64) int64 {
	if c > k.rule.Limit {
		return Never
	}
	for {
		_, end := k.rule.Begins(t)
		at := t
		if k.rule.Spread {
			at = max(t, k.pace)
		}
		if _, ends := k.rule.Begins(known(t)); t >= ends { // "nothing is granted ahead of its period"
			return Never
		}
		if at < end-k.slack && k.left(known(at), at) >= c {
			return at
		}
		t = max(end, at)
		if at >= end {
			continue
		}
		t = end
	}
}

func (k *calendar) charge(now, s, c int64, id string) {
	from, end := k.rule.Begins(s)
	here, _ := k.rule.Begins(now)
	k.see(here)
	k.see(from)
	k.was = k.pace
	if left := k.left(now, s); k.rule.Spread && left > 0 {
		// "nothing starts before s + ⌈T·c/R⌉", T until the period's last slack
		k.pace = s + ceil(new(big.Rat).Mul(big.NewRat(end-k.slack-s, left), new(big.Rat).SetInt64(c)))
	}
	k.list = append(k.list, units{id, s, end, c})
}

// refund: nothing comes back "of a period that is not remembered any more", which are all but the
// latest two: the one at hand and the one before it, or the next where that has units already. The
// place in the pace stays empty, "unless it was charged last".
func (k *calendar) refund(now int64, id string) {
	i := slices.IndexFunc(k.list, func(u units) bool { return u.id == id })
	if i < 0 || k.list[i].start < k.oldest(now) {
		return
	}
	if i == len(k.list)-1 {
		k.pace = k.was
	}
	k.list = slices.Delete(k.list, i, i+1)
}

func (k *calendar) oldest(now int64) int64 {
	here, end := k.rule.Begins(now)
	if slices.Contains(k.seen, end) {
		return here
	}
	before, _ := k.rule.Begins(here - 1)
	return before
}

func (k *calendar) see(period int64) {
	if at, found := slices.BinarySearch(k.seen, period); !found {
		k.seen = slices.Insert(k.seen, at, period)
	}
}

func (k *calendar) remaining(now int64) int64 { return max(0, k.left(now, now)) }

// reset is also after the pace, which refunds of earlier charges leave as it is.
func (k *calendar) reset(now int64) int64 {
	at := latest(now, k.list)
	if k.rule.Spread {
		at = max(at, k.pace)
	}
	return at
}

// places is a concurrency rule: one place for each run, until it is released or its lease ends.
type places struct {
	rule Rule
	list []units
}

// first: "a place that is free when a lease ends is granted to nobody ahead of that: its run may renew".
func (p *places) first(known func(int64) int64, t, _ int64) int64 {
	moments := []int64{t}
	for _, u := range p.list {
		if u.leave > t {
			moments = append(moments, u.leave)
		}
	}
	slices.Sort(moments)
	for _, m := range moments {
		if p.remaining(known(m)) > 0 {
			return m
		}
	}
	return Never
}

func (p *places) charge(now, s, _ int64, id string) {
	p.list = slices.DeleteFunc(p.list, func(u units) bool { return u.leave <= now })
	p.list = append(without(p.list, id), units{id, s, s + p.rule.Lease, 1})
}

func (p *places) refund(_ int64, id string) { p.list = without(p.list, id) }

func (p *places) remaining(now int64) int64 {
	n := p.rule.Limit
	for _, u := range p.list {
		if u.leave > now {
			n--
		}
	}
	return max(0, n)
}

func (p *places) reset(now int64) int64 { return latest(now, p.list) }
