package replay

import (
	"math"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// never is a moment that no clock reaches. All times are µs since 1970.
const never = math.MaxInt64

// counter is the state of one rule, as docs/algorithms.md defines it, for starts that are never ahead.
type counter interface {
	// fit returns the first moment from now on at which c units may start if nothing else does; never if no clock tells.
	fit(now, c int64) int64
	charge(now, c int64)
	// settle charges more units for a start at a moment, or gives back some where more is negative.
	settle(now, start, more int64)
}

func newCounter(b policy.MatchedRule, tolerance time.Duration) counter {
	r := b.Rule
	switch kind, n := wire.Numbers(r, tolerance, time.Unix(0, 0)); {
	case b.Paused() && b.Until.IsZero():
		return &places{free: never}
	case b.Paused():
		return &places{free: b.Until.UnixMicro()}
	case kind == 'T':
		return &bucket{p: n[0], q: n[1], burst: n[2], slack: n[3], low: never}
	case kind == 'S':
		return &window{limit: n[0], per: n[1], grain: n[2], slack: n[3]}
	case kind == 'K':
		return &calendar{rule: r, slack: n[4]}
	}
	return &places{limit: r.Limit, free: never}
}

// bucket drains p parts a microsecond, of which q are a unit. x is its level at the latest start, and low the least level that charges
// after since have met: what is below was refilled since, and does not come back.
type bucket struct {
	p, q, burst, slack int64
	x, at, since, low  int64
}

// level may be below zero; what is further below than slack makes no difference.
func (b *bucket) level(t int64) int64 {
	if b.p == 0 || t-b.at > b.x/b.p+b.slack {
		return -b.slack * b.p
	}
	return b.x - (t-b.at)*b.p
}

func (b *bucket) fit(now, c int64) int64 {
	if b.p == 0 || c > b.burst {
		return never
	}
	over := b.level(now) + b.slack*b.p + (c-b.burst)*b.q
	if over <= 0 {
		return now
	}
	return now + (over+b.p-1)/b.p
}

func (b *bucket) charge(now, c int64) {
	met := max(b.level(now), 0)
	if now > b.at && met < b.q {
		b.since, b.low = now, never
	} else if now > b.at {
		b.low = min(b.low, met)
	}
	b.x, b.at = met+c*b.q, now
}

func (b *bucket) settle(now, start, more int64) {
	level := max(b.level(now), 0)
	if more > 0 {
		b.charge(now, min(more, (2*b.burst*b.q-min(level, 2*b.burst*b.q))/b.q))
		return
	}
	const moment, longest = 100_000, 1 << 36
	held, since := b.low, max(start-moment, b.since)
	if start == b.at {
		held = never
	} else if start < b.since {
		held, since = 0, start-moment
	}
	drained := min(max(now, b.at)-since, longest) * b.p
	back := max(0, min(-more*b.q, level, b.x, max(held, -more*b.q-drained)))
	if start < b.at && b.low != never {
		b.low = max(0, b.low-back)
	}
	b.x -= back
}

// window is a sliding window of cells; without per a fixed one, whose cells are the windows; without grain one that opens on use.
type window struct {
	limit, per, grain, slack int64
	cells                    []cell
	total                    int64
}

type cell struct{ leaves, units int64 }

func (w *window) forget(now int64) {
	n := 0
	for n < len(w.cells) && w.cells[n].leaves <= now {
		w.total -= w.cells[n].units
		n++
	}
	if w.cells = w.cells[n:]; len(w.cells) == 0 {
		w.cells, w.total = nil, 0
	}
}

// leaves returns when what starts at a moment leaves.
func (w *window) leaves(start int64) int64 {
	switch {
	case w.per == 0:
		return start - start%w.grain + w.grain
	case w.grain == 0:
		if len(w.cells) > 0 {
			return w.cells[0].leaves
		}
		return start + w.per
	}
	return (start+w.grain-1)/w.grain*w.grain + w.per
}

func (w *window) fit(now, c int64) int64 {
	if w.forget(now); c > w.limit {
		return never
	}
	if w.per == 0 || w.grain == 0 {
		if end := w.leaves(now); now >= end-w.slack || w.total+c > w.limit {
			return end
		}
		return now
	}
	for i, left := 0, w.total; left+c > w.limit; i++ {
		if left -= w.cells[i].units; left+c <= w.limit {
			return w.cells[i].leaves
		}
	}
	return now
}

func (w *window) charge(now, c int64) {
	leaves := w.leaves(now)
	if n := len(w.cells) - 1; n >= 0 && w.cells[n].leaves == leaves {
		w.cells[n].units += c
	} else {
		w.cells = append(w.cells, cell{leaves, c})
	}
	w.total += c
}

func (w *window) settle(now, start, more int64) {
	if w.forget(now); more > 0 {
		w.charge(now, max(0, min(more, 2*w.limit-w.total)))
		return
	}
	leaves := w.leaves(start)
	for i := range w.cells {
		if w.cells[i].leaves == leaves {
			back := min(-more, w.cells[i].units)
			w.cells[i].units, w.total = w.cells[i].units-back, w.total-back
		}
	}
	if w.total == 0 { // a window without units is none
		w.cells = nil
	}
}

// calendar counts in the periods of a cron expression.
type calendar struct {
	rule                  policy.Rule
	slack                 int64
	before, from, to      int64 // the period before, and that of the latest call
	count, spare          int64 // the units of the period, and what the one before left over
	paced, last, wasPaced int64 // nothing starts before paced, which it became by the start at last; and what it was
}

// roll begins the period of now.
func (k *calendar) roll(now int64) {
	if now < k.to {
		return
	}
	p := k.rule.PeriodsAt(time.UnixMicro(now))
	if k.to > 0 {
		k.spare = k.rule.Limit + k.carry() - k.count
		if p.Before.UnixMicro() != k.from { // periods without a unit were between
			k.spare = k.rule.Limit + k.carry()
		}
	}
	k.before, k.from, k.to, k.count, k.paced = p.Before.UnixMicro(), p.From.UnixMicro(), p.To.UnixMicro(), 0, 0
}

func (k *calendar) carry() int64 { return min(k.rule.Rollover, max(0, k.spare)) }

func (k *calendar) fit(now, c int64) int64 {
	k.roll(now)
	switch {
	case c > k.rule.Limit:
		return never
	case now >= k.to-k.slack, k.count+c > k.rule.Limit+k.carry():
		return k.to
	case now < k.paced:
		return min(k.paced, k.to)
	}
	return now
}

func (k *calendar) charge(now, c int64) {
	k.roll(now)
	k.wasPaced, k.last = k.paced, now
	if left := k.rule.Limit + k.carry() - k.count; k.rule.Spread && left > 0 {
		gap, rest := wire.MulDiv(max(0, k.to-k.slack-now), c, left)
		k.paced = now + gap + min(rest, 1)
	}
	k.count += c
}

func (k *calendar) settle(now, start, more int64) {
	k.roll(now)
	switch {
	case more > 0:
		k.charge(now, min(more, max(0, 2*k.rule.Limit-k.count)))
	case start >= k.from:
		if k.count = max(0, k.count+more); start == k.last {
			k.paced = k.wasPaced
		}
	case start >= k.before:
		k.spare -= more
	}
}

// places are those of runs: each start takes one, and the end of the run frees it. A pause is without places until a moment.
type places struct{ limit, running, free int64 }

func (p *places) fit(now, _ int64) int64 {
	if p.running < p.limit {
		return now
	}
	return max(now, p.free)
}

func (p *places) charge(_, c int64)       { p.running += c }
func (p *places) settle(_, _, more int64) { p.running += more }

// rule is a rule of the draft, at the level at which it counts.
type rule struct {
	counter
	of    policy.MatchedRule
	name  string // its place in limits.yaml
	node  *node
	holds bool // with hours: whether it applies, between two moments
	since int64
	until int64
}

// fit asks the counter. When the rule's hours are over, it must be asked again.
func (r *rule) fit(now, c int64) int64 {
	at := r.counter.fit(now, c)
	if r.of.Rule.Active != nil {
		at = min(at, r.until)
	}
	return at
}

// applies reports whether the rule counts what starts at a moment.
func (r *rule) applies(at int64) bool {
	if r.of.Rule.Active == nil {
		return true
	}
	if at < r.since || at >= r.until {
		holds, from, until := r.of.Rule.ActiveAt(time.UnixMicro(at))
		r.holds, r.since, r.until = holds, from.UnixMicro(), until.UnixMicro()
	}
	return r.holds
}

// cost returns how many units of the rule a task takes that starts at a moment.
func (r *rule) cost(t *task, costs policy.Costs, at int64) int64 {
	switch of := r.of.Rule; {
	case !r.applies(at):
		return 0
	case r.of.Paused() || of.Algorithm == policy.Concurrency:
		return 1
	case costs != nil:
		return costs.Of(of.Unit)
	}
	return t.cost
}

// recovers is how long after a moment the rule is as if unused, if all that it admits was spent then; never if no clock tells.
func (r *rule) recovers(at int64) int64 {
	full, all := newCounter(r.of, 0), r.of.Rule.Capacity()
	full.charge(at, all)
	if free := full.fit(at, all); free < never {
		return free - at
	}
	return never
}
