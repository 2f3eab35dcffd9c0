package throttle

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Looks, and the other calls that move those who wait, in the model.

func (w *turnsWorld) find(p Place) *waiter {
	for _, t := range w.tasks {
		if t.Ticket == p.Ticket {
			return t
		}
	}
	fail("nobody has heard of %v", p)
	return nil
}

// wake calls Wake, with the news, and returns those released.
func (w *turnsWorld) wake(most int, spread int64, all bool) Woken {
	w.look()
	w.called()
	req := w.news
	req.Lead, req.Spread, req.Most, req.All = us(w.h.lead), us(spread), most, all
	w.news = WakeRequest{Provider: "p"}
	if w.still {
		req.StandStill = []string{"g/"}
	}
	before := w.seen
	woken, err := w.limiter().Wake(ctx, req)
	must(err)
	w.sent, w.awake, w.unfinished = "wake", w.now, woken.Next <= 0
	w.most = most
	if len(woken.Released) > most {
		fail("%d were released, of %d at most", len(woken.Released), most)
	}
	named := map[string]bool{}
	for _, p := range woken.Released {
		t := w.find(p)
		if named[p.Ticket] || t.stage == running || t.stage == gone {
			fail("%s was released, twice, or though it does not wait", p.Ticket)
		}
		named[p.Ticket] = true
		t.passed = t.passed || w.disturbed && t.stage != parked // its place was by another clock
		t.stage, t.left = released, w.now
	}
	w.heeded(req, named)
	w.late(named)
	w.parks(req, named)
	w.inOrder(before, woken.Released, named)
	return woken
}

// parks: those whose group stands still are not released, and those who have been count no more.
// Who is parked is what Redis holds; whoever was not told to go back stays there.
func (w *turnsWorld) parks(req WakeRequest, named map[string]bool) {
	w.look()
	for _, t := range w.tasks {
		ours, is := strings.HasPrefix(t.Ticket, "g/"), w.seen.parked[scopePath(t.Scope)+"\x00"+t.key()]
		switch {
		case is && !ours && !w.neverPasses(t) && t.stage != aside, is && t.stage != parked && t.stage != released && t.stage != astray && t.stage != aside:
			fail("%s is parked, at stage %d", t.key(), t.stage)
		case is:
			t.stage, t.aside = aside, true
		case t.stage == aside && slices.ContainsFunc(req.Back, func(p Place) bool { return p.Ticket == t.Ticket }):
			t.stage = parked
			if named[t.Ticket] {
				t.stage = released
			}
		case w.still && ours && named[t.Ticket]:
			fail("%s was released, and stands still", t.key())
		case w.still && ours && t.stage == straight:
			t.stage = astray
		}
	}
	for field, value := range w.seen.out {
		if _, ticket, _ := strings.Cut(field, "\x00"); w.still && strings.Contains(ticket, ":g/") && value[21:] != "!" { // which says that it runs
			fail("%q stands still, and is out", field)
		}
	}
}

// goOn has some who are parked go back to their places, and says whether there are more.
func (w *turnsWorld) goOn(n int) bool {
	places, err := w.limiter().Parked(ctx, "p", 0, n)
	must(err)
	w.news.Back = places
	w.wake(8, 0, false)
	return len(places) == n
}

// endsBefore has a task end, which the next call, for most others, is told.
func (w *turnsWorld) endsBefore(t *waiter, most int) {
	w.news.Gone = append(w.news.Gone, t.Place)
	t.stage = astray
	w.wake(most, 0, false)
	t.stage = gone
}

// neverPasses says whether a task costs more than one of its rules ever admits.
func (w *turnsWorld) neverPasses(t *waiter) bool {
	return slices.ContainsFunc(w.plan(t.Scope).bounds, func(b Bound) bool {
		return b.Rule.Algorithm != Concurrency && b.Rule.Limit > 0 && t.under(b.Rule) > b.Rule.Capacity()
	})
}

// heeded: who came too early stands in line again, and who runs is forgotten in a
// while, whatever an answer that was sent again has said of them meanwhile.
func (w *turnsWorld) heeded(req WakeRequest, named map[string]bool) {
	for _, p := range slices.Concat(req.NotYet, req.Running) {
		if t := w.find(p); !named[t.Ticket] && (t.stage == straight || t.stage == released) {
			t.passed, t.stage = true, astray
		}
	}
}

// late: what was released and has not come in time is in line again, and what was
// known to run is forgotten.
func (w *turnsWorld) late(named map[string]bool) {
	for _, t := range w.tasks {
		if (t.stage == released || t.stage == straight) && !named[t.Ticket] && t.left+outStays <= w.now {
			t.stage = map[stage]stage{released: parked, straight: astray}[t.stage]
		}
		if w.disturbed && (t.stage == released || t.stage == parked) && !named[t.Ticket] {
			t.stage = astray
		}
	}
}

// outStays is how long who was released counts as on its way.
const outStays = 3e6

// inOrder: within a scope those go first that have the higher priority, and then
// those that asked first.
func (w *turnsWorld) inOrder(before standings, woken []Place, named map[string]bool) {
	for i, p := range woken {
		t := w.find(p)
		for _, other := range woken[i+1:] {
			w.goesFirst(t, w.find(other), "released")
		}
		for _, ticket := range before.line[scopePath(t.Scope)] {
			if other := w.find(readPlace(t.Scope, ticket)); !named[other.Ticket] && other.stage == parked {
				w.goesFirst(t, other, "left in line")
			}
		}
	}
}

func (w *turnsWorld) goesFirst(a, b *waiter, how string) {
	if a.Scope != b.Scope || a.passed || b.passed {
		return
	}
	// Places of many who come at once run ahead of the clock, and who comes then to a line that one of
	// them has left for a while, of another group, may be before it.
	if (a.aside || b.aside) && strings.HasPrefix(a.Ticket, "g/") != strings.HasPrefix(b.Ticket, "g/") && max(a.placed, b.placed)-min(a.placed, b.placed) < 100_000 {
		return
	}
	// Lanes share their turns. Who came back to the front, and who has no lane, keep their order
	// towards all.
	if shares := a.lane != "" && b.lane != "" && a.order > 0 && b.order > 0; shares && a.lane != b.lane && a.priority == b.priority {
		return
	}
	if order := cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.order, b.order)); order > 0 {
		fail("%s (priority %d, asked %d) went before %s (priority %d, asked %d), which was %s",
			a.key(), a.priority, a.order, b.key(), b.priority, b.order, how)
	}
}

// lineUp gives places to tasks that are about to be enqueued.
func (w *turnsWorld) lineUp(tasks []*waiter, near int64) {
	w.look()
	w.called()
	var asks []Ask
	for _, t := range tasks {
		asks = append(asks, Ask{Scope: t.Scope, Ticket: t.Ticket, Cost: t.cost, Costs: t.costsByUnit(), Priority: t.priority, Lane: t.lane, Stride: strides[t.lane]})
	}
	placed, err := w.limiter().LineUp(ctx, asks, us(w.h.lead), us(near))
	must(err)
	w.sent = "line up"
	joined := false
	for i, p := range placed {
		t := tasks[i]
		switch {
		case p.Err != nil:
			t.stage = gone
		case p.Waits:
			w.stand(t, comes)
			joined = true
		default:
			t.stage, t.left = straight, w.now
			for _, level := range w.plan(t.Scope).scope.levels() {
				if until := w.pauses[level]; until > w.now+near {
					fail("%s goes straight to its queue, and %s is paused for %v", t.key(), level, us(until-w.now))
				}
			}
			if joined && len(w.seen.line[scopePath(t.Scope)]) > 0 {
				fail("%s goes straight to its queue, and others wait", t.key())
			}
		}
	}
}

// resend sends the last call once more: it changes nothing.
func (w *turnsWorld) resend() {
	w.look()
	before := w.seen
	reply, err := w.rdb.Do(ctx, w.last.args...).Result()
	must(err)
	w.fresh = false
	w.look()
	after := w.seen
	if w.sent == "wake" && w.again(reply) {
		return
	}
	for _, scope := range w.h.scopes {
		if was, is := slices.Sorted(slices.Values(before.line[scopePath(scope)])), slices.Sorted(slices.Values(after.line[scopePath(scope)])); !slices.Equal(was, is) {
			fail("%s was sent again: the line of %s was %v and is %v", w.sent, scope, was, is)
		}
	}
	if was, is := slices.Sorted(maps.Keys(before.out)), slices.Sorted(maps.Keys(after.out)); !slices.Equal(was, is) {
		fail("%s was sent again: %q were out, and now %q (%v)", w.sent, was, is, reply)
	}
	w.h.counts.resent[w.sent]++
}

// again notes who was released by a Wake that was sent again, and says whether it
// may have been others than before: it wanted to be called again.
func (w *turnsWorld) again(reply any) bool {
	woken, err := readWake("p", reply.([]any)) //nolint:forcetypeassert // a list
	must(err)
	if len(woken.released) > w.most {
		fail("wake was sent again: %d were released, of %d at most", len(woken.released), w.most)
	}
	if w.unfinished {
		for _, p := range woken.released {
			t := w.find(p)
			t.stage, t.left, t.passed = released, w.awake, true
		}
	}
	return w.unfinished
}

// deliver has everybody come who was released.
func (w *turnsWorld) deliver() {
	for _, t := range w.tasks {
		if t.stage == released || t.stage == straight {
			w.ask(t, comes, w.h.lead+w.h.spread+100_000, 0)
		}
		if t.stage == running && w.h.quick {
			w.finish(t)
		}
	}
}
