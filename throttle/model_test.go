package throttle

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/headway-go/headway/throttle/policy"
)

// The model: what each algorithm promises, counted from the definitions alone,
// over a list of everything that was let start. It knows nothing of cells,
// levels or logs. All numbers of a history stay far below 2^63.
//
// Times are µs on a scale that never runs back: the scripts' clock, with every
// step back undone. On that scale a limit is kept exactly, whatever the clock
// does; a step forward is time that passes for the scripts alone, so that on the
// wall's scale it lets one extra limit in, once.

// charge is one grant, as one rule counts it.
type charge struct {
	id      string
	units   int64
	start   int64
	byClock int64 // the start by the scripts' clock, which fixed windows are aligned to
	pass    int   // the ledger's, when it was charged
	until   int64 // up to when it must be remembered
	window  int64 // when the window begins, of those that open on use, that it is in
	ends    int64 // concurrency: when its lease ends
	refill  int64 // token bucket: how much had been refilled at the start, in parts
}

// ledger is what one rule has let start and must remember.
type ledger struct {
	rule    policy.Rule
	charges []charge

	// Token bucket: what had been refilled up to the decision of the last grant.
	// Since then it refills at the rate that the next grant is decided under.
	refilled, last int64
	until          int64

	// inexact says that the scripts may hold more against the rule than the
	// definition asks: never less.
	inexact bool

	// Calendars: the periods that the rule's state knows of, and when what is left of
	// one may start next.
	touched        map[int64]bool
	paced, pacedIn int64

	// How often the clock has stepped back by more than what is known of a window, and by how much
	// since it last did.
	pass int
	back int64

	// The latest start that a calendar's state may show.
	latest int64

	// whole is what a bucket held before it was clipped: that is written with a grant alone. loose says
	// that it still holds it, and is clipped anew with the next look.
	whole []charge
	loose bool

	// adrift says that windows that open on use are not known any more where the scripts have them: the clock
	// has stepped back, or the rule was another. astray says that a start has been counted since: in the
	// definition's windows, not in those of the scripts.
	adrift, astray bool

	// changed says that the rule has changed: which rate a bucket refilled at
	// between two decisions at one moment, a µs apart, the definition can't say.
	changed bool
}

// parts is how many parts the model counts a token bucket's unit in: all rates
// of a history are then whole numbers of parts a microsecond.
const parts = 60_000_000

func (l *ledger) per() int64 {
	slack := l.rule.Margin.Microseconds()
	if l.rule.Algorithm != policy.SlidingWindow {
		slack = 0
	}
	return l.rule.Per.Microseconds() + slack
}

// rate returns parts a microsecond.
func (l *ledger) rate() int64 { return l.rule.Limit * (parts / l.rule.Per.Microseconds()) }

// refill returns how much a token bucket has refilled at u.
func (l *ledger) refill(u int64) int64 { return l.refilled + (u-l.last)*l.rate() }

// owed returns a token bucket's level at u in parts: the most by which what was
// taken since any moment exceeds what was refilled since.
func (l *ledger) owed(u int64) int64 {
	var most, taken int64
	for _, from := range slices.Backward(l.byRefill()) {
		taken += from.units * parts
		most = max(most, taken-(l.refill(u)-from.refill))
	}
	return most
}

func (l *ledger) byRefill() []charge {
	return slices.SortedFunc(slices.Values(l.charges), func(a, b charge) int { return cmp.Compare(a.refill, b.refill) })
}

// stepBack: the clock steps back. What a fixed window had is found where that is no longer than
// the window, and a calendar's where it is no longer than a minute; the same ones are begun anew
// after that, and by the clock's names for them there may be one limit more in one, once. So may
// there be where several steps leave a calendar's latest start more than two minutes ahead: a state
// does not say where they began.
func (l *ledger) stepBack(us, now int64) {
	l.back += us
	l.adrift = true
	known := int64(60e6)
	if l.rule.Algorithm == policy.FixedWindow {
		known = l.rule.Per.Microseconds()
	}
	lost := l.rule.Algorithm == policy.Calendar && l.latest > now+120e6
	if lost {
		l.latest = now
	}
	if lost || l.back > known {
		l.pass, l.back = l.pass+1, 0
	}
}

// look is a decision at u by the clock now: what need not be remembered any more
// is forgotten, and if the rule has changed, what was spent is kept as the
// algorithms' pages say.
func (l *ledger) look(rule policy.Rule, u, now int64) {
	l.forget(u)
	loose := l.loose
	l.whole, l.loose = nil, false
	if l.rule == rule {
		if loose {
			l.clip()
		}
		return
	}
	before := *l
	l.rule, l.changed = rule, true
	l.adrift = l.adrift || rule.OpensOnUse && (!before.rule.OpensOnUse || rule.Per != before.rule.Per || rule.Margin != before.rule.Margin)
	l.inexact = true // a key may outlast what the old rule meant, by a second
	switch {
	case rule.OpensOnUse && !before.rule.OpensOnUse:
		l.charges = nil // at which moments windows opened meanwhile the definition can't say
	case u != now && (rule.Algorithm != before.rule.Algorithm || rule.Algorithm == policy.TokenBucket):
		// Where the clock has stepped back, a bucket drains at its own rate up to
		// where the clock had been, and fixed windows come again.
		l.charges = nil
	case rule.Algorithm != before.rule.Algorithm:
		l.carry(before, u, now)
	case rule.Algorithm == policy.TokenBucket:
		l.clip()
	case rule.Algorithm == policy.FixedWindow && (rule.Per != before.rule.Per || rule.OpensOnUse != before.rule.OpensOnUse):
		l.charges = nil
	case rule.Algorithm == policy.Calendar && rule.Resets != before.rule.Resets:
		before.onlyLatest()
		l.charges, l.touched = before.charges, nil
		if u != now {
			l.charges = nil
		}
	}
}

// onlyLatest forgets what a calendar's state has not: all but the latest two periods.
func (l *ledger) onlyLatest() {
	latest := int64(0)
	for i := range l.touched {
		latest = max(latest, i)
	}
	l.charges = slices.DeleteFunc(slices.Clone(l.charges), func(c charge) bool {
		_, i := spanOf(l.rule, c.byClock)
		return i < latest-1
	})
}

func (l *ledger) forget(u int64) {
	if l.rule.Algorithm == policy.TokenBucket && l.until <= u {
		l.charges = nil
	}
	l.charges = slices.DeleteFunc(l.charges, func(c charge) bool {
		switch l.rule.Algorithm {
		case policy.TokenBucket:
			return false
		case policy.Concurrency:
			return c.ends <= u
		}
		return c.until <= u
	})
}

// held returns what another algorithm finds spent: of a bucket its level, as of its last
// decision, of fixed windows the latest two, since they keep no more.
func (l *ledger) held(u, now int64) []charge {
	per := l.rule.Per.Microseconds()
	switch l.rule.Algorithm {
	case policy.TokenBucket:
		if units := l.owed(u) / parts; units > 0 {
			return []charge{{id: carried, units: units, start: l.last, byClock: l.last - u + now, pass: l.pass}}
		}
		return nil
	case policy.FixedWindow:
		if l.rule.OpensOnUse {
			return slices.Clone(l.charges)
		}
		here := slices.DeleteFunc(slices.Clone(l.charges), func(c charge) bool { return c.pass != l.pass })
		windows := make([]int64, len(here))
		for i, c := range here {
			windows[i] = c.byClock / per
		}
		slices.Sort(windows)
		windows = slices.Compact(windows)
		oldest := windows[max(0, len(windows)-2):]
		return slices.DeleteFunc(here, func(c charge) bool { return c.byClock/per < oldest[0] })
	case policy.Calendar:
		_, here := spanOf(l.rule, now)
		return slices.DeleteFunc(slices.Clone(l.charges), func(c charge) bool {
			_, i := spanOf(l.rule, c.byClock)
			return c.pass != l.pass || i < here || i > here+1
		})
	}
	return slices.Clone(l.charges)
}

// carry begins anew with what another algorithm held.
func (l *ledger) carry(before ledger, u, now int64) {
	l.charges = before.held(u, now)
	l.refilled, l.last, l.until, l.inexact, l.touched = 0, u, math.MaxInt64, true, nil
	if l.rule.Algorithm == policy.TokenBucket && len(l.charges) > 0 {
		l.last = 0 // a bucket knows of no decision since the last start that it took over
		for _, c := range l.charges {
			l.last = max(l.last, min(c.start, u))
		}
	}
	for i := range l.charges {
		c := &l.charges[i]
		switch {
		case l.rule.Algorithm != policy.SlidingWindow && c.start > u:
			c.start, c.byClock = u, now // spent by now, wherever it starts
		case l.rule.Algorithm == policy.SlidingWindow && before.rule.Algorithm == policy.TokenBucket:
			c.start += 1_000_000 // a bucket does not know its starts: they are not later than this
			c.byClock += 1_000_000
		}
		c.pass, c.until = l.pass, l.lasts(c.start, u, now)
		if l.rule.Algorithm == policy.TokenBucket {
			c.refill = l.refill(c.start)
		}
	}
	l.clip()
	l.forget(u)
	l.keep(u)
}

// clip lets go what a bucket that was changed holds beyond full, but for what may have been
// granted ahead.
func (l *ledger) clip() {
	if l.rule.Algorithm != policy.TokenBucket || l.rule.Limit == 0 {
		return
	}
	most := l.rule.Capacity() + 60_000_000*l.rate()/parts
	if l.owed(l.last) > most*parts {
		l.whole = l.charges
		l.charges = []charge{{id: carried, units: most, start: l.last, refill: l.refill(l.last)}}
	}
}

// unclip is a denial that wrote nothing: what a clip would let go is still held.
func (l *ledger) unclip() {
	if l.whole != nil {
		l.charges, l.whole, l.loose = l.whole, nil, true
	}
}

// lasts returns up to when a start must be remembered.
func (l *ledger) lasts(start, u, now int64) int64 {
	if l.rule.OpensOnUse {
		length, _ := l.onUse()
		return l.windowOf(start) + length
	}
	if l.rule.Algorithm == policy.FixedWindow {
		per := l.rule.Per.Microseconds()
		byClock := start - u + now
		return start + per - byClock%per
	}
	if l.rule.Algorithm == policy.Calendar {
		length, index := spanOf(l.rule, start-u+now)
		if l.rule.Rollover > 0 {
			return never // what rolls over from one to the next follows from the first
		}
		return start + beginsAt(l.rule, index+1) - (start - u + now) + 2*length
	}
	return start + l.per()
}

// seen is a denial: nothing is charged, and what is known stays known as long as
// the rule as it is now needs it. A state that a clock's step left in the future
// is written anew, as by a grant.
func (l *ledger) seen(u, now int64) {
	if u != now {
		l.trim(l.rule, u)
	}
	for i := range l.charges {
		if l.rule.Algorithm == policy.SlidingWindow && u == now {
			l.charges[i].until = max(l.charges[i].until, l.charges[i].start+l.per())
		}
	}
	if l.rule.Limit > 0 {
		l.until = max(l.until, l.owedUntil(u))
	}
}

// keep is a grant: everything is written anew, for as long as the rule needs it.
func (l *ledger) keep(u int64) {
	for i := range l.charges {
		if l.rule.Algorithm == policy.SlidingWindow {
			l.charges[i].until = l.charges[i].start + l.per()
		}
	}
	l.until = l.owedUntil(u)
}

func (l *ledger) owedUntil(u int64) int64 {
	if l.rule.Algorithm != policy.TokenBucket || l.rule.Limit == 0 {
		return u
	}
	return u + l.owed(u)/l.rate()
}

// take adds a grant and says how it breaks the rule's promise, if it does.
func (l *ledger) take(c charge, u, now int64) string {
	c.until, c.window = l.lasts(c.start, u, now), l.windowOf(c.start)
	c.ends = c.start + l.rule.Lease.Microseconds()
	if l.rule.Algorithm == policy.TokenBucket {
		at := max(u, l.last+1) // no two decisions are at one moment
		l.refilled, l.last = l.refill(at), at
		c.refill = l.refill(c.start)
		l.inexact = l.inexact || c.start > u
	}
	l.charges = append(l.charges, c)
	l.astray = l.adrift
	l.latest = max(l.latest, c.byClock)
	var fault string
	switch l.rule.Algorithm {
	case policy.TokenBucket:
		fault = l.bucketFault(c)
	case policy.SlidingWindow:
		fault = l.slidingFault(c)
	case policy.FixedWindow:
		if fault = l.fixedFault(c); l.rule.OpensOnUse {
			fault = l.openedFault(c)
		}
	case policy.Calendar:
		fault = l.calendarFault(c, u, now)
		l.touch(c, now)
		l.pace(c, now)
	case policy.Concurrency:
		if n := l.runs(u); n > l.rule.Limit {
			fault = fmt.Sprintf("%d runs at once", n)
		}
	}
	l.keep(u)
	return fault
}

// bucketFault: over every interval from one start to another that holds c, at
// most burst + limit/per * its length, less what the margin may shorten it by.
func (l *ledger) bucketFault(c charge) string {
	slack := l.rule.Margin.Microseconds() * l.rate()
	if l.changed {
		slack -= 2 * parts / 250_000 * 20 // two µs at the highest rate of a history
	}
	order := l.byRefill()
	for i, from := range order {
		if from.refill > c.refill {
			break
		}
		var units int64
		for _, to := range order[i:] {
			units += to.units
			room := l.rule.Capacity()*parts + max(0, to.refill-from.refill-slack)
			if to.refill >= c.refill && units*parts > room {
				return fmt.Sprintf("%d units from %d to %d; room for %d and %d/%d", units, from.start, to.start, room/parts, room%parts, parts)
			}
		}
	}
	return ""
}

// slidingFault: in every half-open window that holds c, at most limit.
func (l *ledger) slidingFault(c charge) string {
	for _, from := range l.charges {
		if from.start > c.start || c.start-from.start >= l.per() {
			continue
		}
		if units := l.inWindowFrom(from.start); units > l.rule.Limit {
			return fmt.Sprintf("%d units in the window from %d", units, from.start)
		}
	}
	return ""
}

func (l *ledger) inWindowFrom(from int64) int64 {
	var units int64
	for _, c := range l.charges {
		if c.start >= from && c.start-from < l.per() {
			units += c.units
		}
	}
	return units
}

// fixedFault: in the aligned window of c, at most limit.
func (l *ledger) fixedFault(c charge) string {
	if units := l.inWindow(c.byClock, c.pass); units > l.rule.Limit {
		return fmt.Sprintf("%d units in the fixed window of %d", units, c.byClock)
	}
	if late, per := c.byClock+l.rule.Margin.Microseconds(), l.rule.Per.Microseconds(); late/per != c.byClock/per {
		return fmt.Sprintf("started at %d, it may arrive in the next window", c.byClock)
	}
	return ""
}

func (l *ledger) inWindow(byClock int64, pass int) int64 {
	per := l.rule.Per.Microseconds()
	var units int64
	for _, c := range l.charges {
		if c.byClock/per == byClock/per && c.pass == pass {
			units += c.units
		}
	}
	return units
}

// onUse is how long a window is that opens on use, and how much of its end admits nothing.
func (l *ledger) onUse() (length, slack int64) {
	margin := l.rule.Margin.Microseconds()
	return l.rule.Per.Microseconds() + margin, 2 * margin
}

// windowOf is when the window begins that a start belongs to: the first one that ends behind it, unless there is room
// for another before that.
func (l *ledger) windowOf(start int64) int64 {
	length, _ := l.onUse()
	begins := start + length
	for _, c := range l.charges {
		if c.window+length > start {
			begins = min(begins, c.window)
		}
	}
	if begins == start+length {
		return start
	}
	return begins
}

func (l *ledger) inOpened(window int64) (units int64) {
	for _, c := range l.charges {
		if c.window == window {
			units += c.units
		}
	}
	return units
}

// openedFault: in the window of c, which has begun, at most limit; or, where it is not known which that is, at most
// twice that in any time of its length.
func (l *ledger) openedFault(c charge) string {
	length, slack := l.onUse()
	if !l.adrift {
		units := l.inOpened(c.window)
		if units > l.rule.Limit || c.start < c.window || c.start >= c.window+length-slack {
			return fmt.Sprintf("%d units in the window that opened at %d, which has a start at %d", units, c.window, c.start)
		}
		return ""
	}
	var units int64
	for _, o := range l.charges {
		if o.start > c.start-length && o.start <= c.start {
			units += o.units
		}
	}
	if !l.changed && length > 1e6 && units > 2*l.rule.Limit {
		return fmt.Sprintf("%d units within %dµs before %d", units, length, c.start)
	}
	return ""
}

// runs returns how many places are taken at u.
func (l *ledger) runs(u int64) int64 {
	var n int64
	for _, c := range l.charges {
		if c.ends > u {
			n++
		}
	}
	return n
}

// drop takes a grant back, at a moment by the scripts' clock.
func (l *ledger) drop(id string, now int64) {
	had := len(l.charges)
	if l.rule.Algorithm == policy.Calendar {
		l.dropLate(id, now)
	}
	l.charges = slices.DeleteFunc(l.charges, func(c charge) bool { return c.id == id })
	if had > len(l.charges) && (l.rule.Algorithm == policy.TokenBucket || l.rule.Spread || l.changed) {
		// A bucket may hold less than the units not taken would leave, and a
		// window that was shorter for a while finds nothing to give back.
		l.inexact = true
	}
}

// trim: giving back, too, writes what the rule as it is now needs, and no more.
func (l *ledger) trim(rule policy.Rule, u int64) {
	now := *l
	now.rule = rule
	for i, c := range l.charges {
		if rule.Algorithm == policy.SlidingWindow {
			l.charges[i].until = min(c.until, c.start+now.per())
		}
	}
	if rule.Algorithm == policy.TokenBucket && rule.Limit > 0 {
		l.until = min(l.until, now.owedUntil(u))
	}
}

// carried is the id of what a bucket held.
const carried = "carried"

// exact says whether the rule must answer as the definition does.
func (l *ledger) exact(u int64) bool { return l.punctual(u) && (!l.rule.OpensOnUse || !l.adrift) }

// punctual says whether the rule must answer as the definition does, but for steps of the clock.
func (l *ledger) punctual(u int64) bool {
	if l.rule.OpensOnUse {
		return !l.inexact && !l.astray
	}
	if l.inexact || l.rule.Margin > 0 && l.rule.Algorithm != policy.SlidingWindow {
		return false
	}
	for _, c := range l.charges {
		if c.start > u {
			return false
		}
	}
	return l.rule.Algorithm != policy.SlidingWindow || grain(l.rule.Limit, l.per()) == 1
}

// left returns the most units that may start at u.
func (l *ledger) left(u, now int64) int64 {
	if l.rule.Limit == 0 {
		return 0
	}
	spent := int64(0)
	switch l.rule.Algorithm {
	case policy.TokenBucket:
		// What is left of the fullest interval around u.
		spent = math.MinInt64
		here := charge{refill: l.refill(u)}
		order := (&ledger{charges: append(slices.Clone(l.charges), here)}).byRefill()
		for i, from := range order {
			taken := int64(0)
			for _, to := range order[i:] {
				taken += to.units * parts
				if from.refill <= here.refill && to.refill >= here.refill {
					spent = max(spent, taken-(to.refill-from.refill))
				}
			}
		}
		spent = (spent + parts - 1) / parts
	case policy.SlidingWindow:
		for _, from := range append(slices.Clone(l.charges), charge{start: u}) {
			if from.start <= u && u-from.start < l.per() {
				spent = max(spent, l.inWindowFrom(from.start))
			}
		}
	case policy.FixedWindow:
		if spent = l.inWindow(now, l.pass); l.rule.OpensOnUse {
			spent = l.inOpened(l.windowOf(u))
		}
		if l.rule.OpensOnUse && l.adrift {
			spent = 0
		}
	case policy.Calendar:
		_, index := spanOf(l.rule, now)
		spent = l.inPeriod(index, l.pass)
		if l.exactly(u, now) {
			spent -= l.rolled(index, l.pass)
		} else {
			spent -= l.rule.Rollover
		}
	case policy.Concurrency:
		spent = l.runs(u)
	}
	return max(0, l.rule.Capacity()-spent)
}

const never = math.MaxInt64

// earliest returns the first moment from u on at which cost may start, tried out
// against the definition, when exact.
func (l *ledger) earliest(cost, u, now int64) int64 {
	switch {
	case l.rule.Limit == 0 || l.rule.Algorithm != policy.Concurrency && cost > l.rule.Capacity():
		return never
	case l.rule.Algorithm == policy.TokenBucket:
		if over := l.owed(u) + (cost-l.rule.Capacity())*parts; over > 0 {
			return u + (over+l.rate()-1)/l.rate()
		}
		return u
	case l.rule.Algorithm == policy.Calendar:
		return l.opens(cost, u, now)
	case l.rule.OpensOnUse:
		length, slack := l.onUse()
		for {
			window := l.windowOf(u)
			if u = max(u, window); l.inOpened(window)+cost <= l.rule.Limit && u < window+length-slack {
				return u
			}
			u = window + length
		}
	case l.rule.Algorithm == policy.FixedWindow:
		if l.inWindow(now, l.pass)+cost > l.rule.Limit {
			per := l.rule.Per.Microseconds()
			return u + per - now%per
		}
		return u
	}
	// What was spent leaves at certain moments only.
	moments := []int64{u}
	for _, c := range l.charges {
		if l.rule.Algorithm == policy.Concurrency {
			moments = append(moments, c.ends)
		} else {
			moments = append(moments, c.start+l.per())
		}
	}
	slices.Sort(moments)
	for _, t := range moments {
		if t >= u && l.fits(cost, t) {
			return t
		}
	}
	return never
}

// fits tries a start at t out.
func (l *ledger) fits(cost, t int64) bool {
	if l.rule.Algorithm == policy.Concurrency {
		return l.runs(t) < l.rule.Limit
	}
	trial := ledger{rule: l.rule, charges: append(slices.Clone(l.charges), charge{start: t, units: cost})}
	return trial.slidingFault(trial.charges[len(l.charges)]) == ""
}
