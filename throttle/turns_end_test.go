package throttle

import (
	"errors"
	"math"
	"slices"
	"strings"
)

// What must be true when a history ends: everybody starts, nothing is left.

// settle wakes until nobody is released, and everybody who was has come. Then no
// first of a round could start.
func (w *turnsWorld) settle() {
	for range 100 {
		woken := w.wake(64, w.h.spread, false)
		if len(woken.Released) == 0 && woken.Next <= 0 && woken.Waiting {
			woken = w.wake(64, w.h.spread, false)
			if len(woken.Released) == 0 && woken.Next <= 0 {
				fail("nobody can be released, and Wake wants to be called at once")
			}
		}
		if len(woken.Released) == 0 {
			w.conserved()
			return
		}
		w.deliver()
	}
	fail("Wake goes on releasing those who can't start")
}

// conserved: no unit stays idle while one that could use it is first in a round
// of its rules, and no other that is to have it first.
func (w *turnsWorld) conserved() {
	w.look()
	if len(w.seen.out) > 0 || len(w.seen.round) == 0 {
		return
	}
	first, orders := map[string]seat{}, map[string]string{}
	for _, s := range w.seen.round {
		if len(w.seen.line[s.scope]) == 0 {
			fail("a seat for the empty line of %q", s.scope)
		}
		if w.neverPasses(w.find(readPlace("p"+s.scope, w.seen.line[s.scope][0]))) {
			continue // nor does any other of its line: they hold up nobody
		}
		order := s.rank + s.scope
		if best, ok := orders[s.rule]; !ok || order < best {
			first[s.rule], orders[s.rule] = s, order
		}
	}
	for rule, s := range first {
		w.cannotStart(rule, s, orders)
	}
	for _, s := range w.seen.round {
		t := w.find(readPlace("p"+s.scope, w.seen.line[s.scope][0]))
		if p := w.pathOf(t); !slices.Contains(p.keys, p.provider+s.rule) && !w.neverPasses(t) {
			w.cannotStart(s.rule, s, orders) // those before it wait for what it takes nothing of
		}
	}
}

func (w *turnsWorld) cannotStart(rule string, s seat, orders map[string]string) {
	scope := "p" + s.scope
	t := w.find(readPlace(scope, w.seen.line[s.scope][0]))
	p := w.pathOf(t)
	if w.still && strings.HasPrefix(t.Ticket, "g/") {
		return // it is parked when its turn comes
	}
	for _, name := range p.rounds() {
		if first, ok := orders[name]; ok && name != rule && first < s.rank[:3]+w.tag(s.scope, name)+s.scope {
			return // it is behind another there
		}
	}
	w.sent = "" // no call that is worth sending again
	d, err := w.limiter().Peek(ctx, Request{Scope: scope, Cost: t.cost, Costs: t.costsByUnit()})
	var tooMuch *CostError
	if errors.As(err, &tooMuch) {
		return
	}
	must(err)
	w.h.counts.looked++
	bound, _ := d.BindingRule()
	if look := w.seen.due[rule]; w.back > 0 && look > w.now {
		return // it was set by a clock that has stepped back, which delays it by its step
	} else if w.narrow && look <= w.now+1_000_000 {
		return // a correction may have ended
	}
	if d.Allowed || d.RetryAfter <= us(w.h.lead) && bound.Algorithm != Concurrency && !leased(p) {
		fail("%s is first for %s and could start in %v, and nobody is released for it; the look is at %d, it is %d",
			t.key(), rule, d.RetryAfter, w.seen.due[rule], w.now)
	}
}

// tag is the stamp that a scope has in the round of a rule, or of a pause: of a level that
// has no rules it is that of the first one that has. Where only one level has rules it is
// that of its seat.
func (w *turnsWorld) tag(scope, rule string) string {
	if len(strings.Split(w.plan("p"+scope).levels, ",")) == 1 {
		for _, s := range w.seen.round {
			if s.scope == scope {
				return s.rank[3:]
			}
		}
	}
	level, _, _ := strings.Cut(rule, ":")
	from := 7 * strings.Count(level, "/")
	tags, none := w.seen.at["T"+scope], strings.Repeat("\x00", 7)
	if strings.HasSuffix(rule, ":!stop") && (len(tags) < from+7 || tags[from:from+7] == none) {
		for from = 0; from+7 < len(tags) && tags[from:from+7] == none; from += 7 {
		}
	}
	if len(tags) >= from+7 {
		return tags[from : from+7]
	}
	fail("%q has no tag in the round of %s: %q", scope, rule, w.seen.at["T"+scope])
	return ""
}

// drain has everybody start who waits: nobody else comes, and runs end at once.
// It takes as long as the limits make it, and no longer.
func (w *turnsWorld) drain() {
	w.version, w.h.quick = 0, true
	for w.still = false; w.goOn(50); {
	}
	began, most := w.now, w.longestDrain()
	all := true
	for rounds := 0; ; rounds++ {
		w.deliver()
		for _, t := range w.tasks {
			if t.stage == running {
				w.finish(t)
			}
		}
		woken := w.wake(64, w.h.spread, all)
		w.sound()
		all = false
		if !woken.Waiting && len(woken.Released) == 0 {
			break
		}
		if rounds > 10_000 {
			fail("nobody comes to the end of the lines: %v", w.seen.line)
		}
		if len(woken.Released) == 0 {
			w.now += max(1, woken.Next.Microseconds())
		}
		if w.now-began > most {
			fail("after %v there still wait %v; it should have taken %v at most", us(w.now-began), w.seen.line, us(most))
		}
	}
	for scope, line := range w.seen.line {
		fail("nobody is left to wake, and %v of %s wait", line, scope)
	}
}

// longestDrain is a bound of how long it takes until all have started.
func (w *turnsWorld) longestDrain() int64 {
	most := int64(10_000_000) + w.back
	for _, until := range w.pauses {
		most = max(most, 10_000_000+w.back+until-w.now)
	}
	for key, l := range w.ledgers {
		var units int64
		for _, scope := range w.h.scopes {
			if p := w.plan(scope); slices.Contains(p.keys, key) {
				l.rule = p.bounds[slices.Index(p.keys, key)].Rule
				for _, t := range w.tasks {
					if t.Scope == scope && t.stage != gone {
						units += t.under(l.rule)
					}
				}
			}
		}
		r := l.rule
		per := r.Per.Microseconds() + r.Margin.Microseconds()
		if r.Algorithm == Calendar {
			per, _ = r.span(w.now)
		}
		if r.Limit > 0 && r.Algorithm != Concurrency {
			// A window may end with less than the next one's cost left in it.
			most += int64(math.Ceil(float64(2*units+4*r.Capacity())/float64(r.Limit)))*per + 4*per
		}
		most += 2 * r.Lease.Microseconds()
	}
	return most + 120e6
}

// nothingLeft: when nobody waits and nobody is on the way, nothing of it is left.
func (w *turnsWorld) nothingLeft() {
	if len(w.seen.round) > 0 || len(w.seen.due) > 0 {
		fail("nobody waits, and %v of %v are left", w.seen.due, w.seen.round)
	}
	for member := range w.seen.parked {
		if !strings.HasSuffix(member, "\x00:g/") && !strings.HasSuffix(member, "\x00:") { // that stands for the group, until it is named in Back again
			fail("nobody waits, and %q is parked", member)
		}
	}
}

// rounds are the names of the rounds that a task of the plan may be in.
func (p *plan) rounds() (names []string) {
	for _, key := range p.keys {
		names = append(names, strings.TrimPrefix(key, p.provider))
	}
	for _, level := range p.scope.levels() {
		names = append(names, scopePath(level)+":!stop")
	}
	return names
}
