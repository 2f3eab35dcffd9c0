package wire

import (
	"context"
	"slices"
	"strings"
)

// told is what the caller says of a grant: the news of ack, or that it "came", and by how much the run was late.
type told struct {
	News
	Late int64
}

// tell reports what became of grants, and has the model hear of it.
func (w *world) tell(list []told) error {
	var news []News
	ctx := context.Background()
	for _, n := range list {
		f := w.flight[n.Waiter]
		if n.What != "came" {
			news = append(news, n.News)
		} else if f != nil {
			w.rdb.HDel(ctx, prefix+"flight", n.Waiter)
			w.rdb.ZRem(ctx, prefix+"flights", n.Waiter)
			if n.Late > 0 {
				g := f.Grant
				report := Report{Lease: g.Lease(), What: "late", Number: n.Late, Text: n.Text, Grant: GrantText(g.Start, 0, g.Shape, g.Places, g.Scope, g.Cost, g.Member)}
				if _, err := w.run("settle", SettleArgs(w.clock(), report)); err != nil {
					return err
				}
			}
		}
	}
	if len(news) > 0 {
		if _, err := w.run("ack", AckArgs(w.clock(), news)); err != nil {
			return err
		}
	}
	for _, n := range list {
		w.hear(n)
	}
	return nil
}

// hear is what the model makes of news.
func (w *world) hear(n told) {
	f := w.flight[n.Waiter]
	if f == nil {
		return
	}
	delete(w.flight, n.Waiter)
	its := w.of(f.Scope, w.policy).with(f.Member)
	same := f.Shape == its.Shape
	switch {
	case n.Late > 0:
		if same {
			w.move(f, its, n.Late)
		}
	case n.What == "back":
		w.giveBack(n.Waiter, f.Scope, its, f.Start, !same)
		w.place(f.waiting)
	case n.What == "used", n.What == "gone":
		w.giveBack(n.Waiter, f.Scope, its, f.Start, true)
	}
	if n.What != "back" {
		w.gone++
	}
}

// move has the units of a run that began late count from then on. Leases stay.
func (w *world) move(f *flying, its Rules, late int64) {
	for _, r := range its.Rules {
		c := unitsOf(r, f.Cost)
		if r.Kind == 'C' || c == 0 {
			continue
		}
		k := w.counter(r, f.Scope)
		k.remove(f.Waiter)
		_ = k.add(r.Numbers, w.now, charge{id: f.Waiter, start: f.Start + late, units: c}, false)
	}
}

// dispatch calls until nothing is stale, and checks each reply.
func (w *world) dispatch(d Dispatch) (Dispatched, error) {
	d.Version, d.Policy = w.version, w.policy
	for range 5 {
		w.say("dispatch %v most %d from %d fresh %v", d.Serves, d.Most, d.From, sortedKeys(d.Fresh))
		reply, err := w.run("dispatch", d.Args(w.clock()))
		if err != nil {
			return Dispatched{}, err
		}
		got, err := ReadDispatch(reply)
		if err != nil {
			return got, err
		}
		w.say("  %d granted, %d refused, stale %v, next %d", len(got.Granted), len(got.Refused), got.Stale, got.Next-epoch)
		if err := w.dispatched(d, got); err != nil {
			return got, err
		}
		d.Fresh, d.Most = map[string]string{}, d.Most-len(got.Granted)
		if len(got.Stale) == 0 {
			return got, w.looks(d, got)
		}
		for _, scope := range got.Stale {
			d.Fresh[scope] = w.text(scope)
		}
	}
	return Dispatched{}, wrong("dispatch finds no end of stale scopes")
}

// dispatched checks what a call granted, refused and named.
func (w *world) dispatched(d Dispatch, got Dispatched) error {
	refused := slices.Clone(got.Refused)
	refuse := func(line string) error { // the tasks at the front of a line that were refused
		for len(w.lines[line]) > 0 {
			t := w.lines[line][0]
			i := slices.Index(refused, [3]string{t.queue, t.scope, t.id})
			if i < 0 {
				return nil
			}
			its := w.plain(t.scope, w.policy)
			if at, _ := w.joint(t.scope, its, w.now, t.cost, true); at != Never {
				return wrong("%s is refused, and could start at %d", t.id, at-epoch)
			}
			refused, w.lines[line] = slices.Delete(refused, i, i+1), w.lines[line][1:]
			w.gone++
		}
		return nil
	}
	if err := w.overdue(got); err != nil {
		return err
	}
	for _, g := range got.Granted {
		line := g.Queue + ":" + g.Scope
		if err := refuse(line); err != nil {
			return err
		}
		if !slices.ContainsFunc(d.Serves, func(s Weighted) bool { return s.Queue == g.Queue }) {
			return wrong("%s is granted to a caller that does not serve %s", g.ID, g.Queue)
		}
		if len(w.lines[line]) == 0 || w.lines[line][0].id != g.ID {
			return wrong("%s is granted, and is not the first of %s: %v", g.ID, line, names(w.lines[line]))
		}
		if err := w.granted(d, g); err != nil {
			return err
		}
	}
	for line := range w.lines {
		if err := refuse(line); err != nil {
			return err
		}
	}
	if len(refused) > 0 {
		return wrong("refused %v, which were not first", refused)
	}
	if len(got.Granted) > d.Most {
		return wrong("%d are granted, at most %d were asked for", len(got.Granted), d.Most)
	}
	return nil
}

// granted checks one grant and charges it.
func (w *world) granted(d Dispatch, g Grant) error {
	line := g.Queue + ":" + g.Scope
	t := w.lines[line][0]
	all := w.of(g.Scope, w.policy)
	its := all.with(g.Member)
	soonest, _ := w.joint(g.Scope, its, w.now+d.From, g.Cost, true)
	latest, _ := w.joint(g.Scope, its, w.now+d.From, g.Cost, false)
	w.say("    %s %s at %d", g.Waiter, g.Scope, g.Start-epoch)
	if g.Start < soonest || g.Start > latest || g.Start > w.now+d.Lead+d.Spread {
		return wrong("%s starts at %d, not from %d to %d", g.ID, g.Start-epoch, soonest-epoch, latest-epoch)
	}
	if g.Cost != t.cost || g.Granted != w.now || g.Shape != its.Shape || len(g.Places) != len(its.Rules) || its.members() != nil {
		return wrong("the grant of %s is %+v", g.ID, g)
	}
	if err := w.chosen(g.Scope, all, g.Member, w.now+d.From, g.Cost, g.Start); err != nil {
		return err
	}
	w.lines[line] = w.lines[line][1:]
	w.flight[g.Waiter] = &flying{waiting: t, Grant: g}
	return w.take(g.Waiter, g.Scope, its, g.Cost, g.Start, 0)
}

// overdue checks that all grants are named that have not come in time, once a second.
func (w *world) overdue(got Dispatched) error {
	var names []string
	for _, g := range got.Overdue {
		names = append(names, g.Waiter)
		f := w.flight[g.Waiter]
		if f == nil || g.Start != f.Start || f.Granted > w.now-overdueAfter {
			return wrong("%s is overdue", g.Waiter)
		}
	}
	for _, waiter := range sortedKeys(w.flight) {
		f := w.flight[waiter]
		due := f.Granted <= w.now-overdueAfter && (f.named == 0 || f.named <= w.now-second)
		if due != slices.Contains(names, waiter) && len(names) < 64 {
			return wrong("%s was granted at %d: overdue is %v", waiter, f.Granted-epoch, names)
		}
		if due {
			f.named = w.now
		}
	}
	return nil
}

// looks checks that a call has left no unit idle, and that its next look is not too late.
func (w *world) looks(d Dispatch, got Dispatched) error {
	clear(w.looked)
	w.next = got.Next
	for _, s := range d.Serves {
		w.unread[s.Queue] = d.Most <= 0
	}
	if d.Most <= 0 {
		w.next = w.now
		return nil
	}
	if got.Next == w.now+givesWay {
		return nil
	}
	for _, t := range w.heads(d.Serves) {
		its := w.of(t.scope, w.policy)
		w.looked[t.line()] = w.binds(t, its)
		if !w.ones {
			continue // a task may save up for its cost
		}
		at, sure := w.joint(t.scope, its, w.now+d.From, t.cost, false)
		keeps, err := w.keeps(t, its, d)
		if err != nil {
			return err
		}
		ending := w.now+30000 >= its.Until-5000 // a distant caller may have looked, whose starts would come after the period
		if sure && at <= w.now && keeps == 0 && !ending {
			return wrong("%s of %s could start, and is not granted", t.id, t.line())
		}
		look := int64(Never)
		for _, own := range its.each() {
			at, sure := w.jointOf(t.scope, own, w.now+d.From, t.cost, false)
			switch {
			case at == Never:
				at = w.now + 3600*second
			case sure:
				at = max(w.now+1, at-d.Lead)
			}
			look = min(look, at)
		}
		look = max(w.now+1, min(look, its.Until, w.uncorrected(t, d.From)))
		switch {
		case ending:
			look = its.Until
		case keeps > 0:
			look = min(keeps, its.Until)
		}
		if got.Next == 0 || got.Next > look {
			return wrong("%s of %s could start at %d (sure %v), the next look is at %d, not by %d", t.id, t.line(), at-epoch, sure, got.Next-epoch, look-epoch)
		}
	}
	for _, waiter := range sortedKeys(w.flight) {
		if f := w.flight[waiter]; got.Next == 0 || got.Next > max(w.now, max(f.Granted+overdueAfter, f.named+second)) {
			return wrong("%s is overdue before the next look at %d", waiter, got.Next-epoch)
		}
	}
	return nil
}

// binds are the nodes of the rules that do not admit a task now, each alone, and one more name for each pause that does not.
func (w *world) binds(t *waiting, its Rules) (nodes []string) {
	bind := func(rules []Rule) (nodes []string) {
		for _, r := range rules {
			if c := unitsOf(r, t.cost); c > 0 {
				if at, _ := w.counter(r, t.scope).first(r.Numbers, w.now, w.now, c, true); at > w.now+lead+spread {
					nodes = append(nodes, w.nodeAt(r, t.scope))
				}
			}
		}
		return nodes
	}
	nodes = bind(its.Rules)
	if list := its.members(); list != nil && !slices.ContainsFunc(list, func(m MemberRules) bool { return len(bind(m.Rules)) == 0 }) {
		nodes = append(nodes, nodeOf(t.scope, its.Pool.Level))
	}
	for _, own := range its.each() {
		for _, p := range w.pausesOf(own.nodes(t.scope)) {
			if at, _ := p.admits(w.now, w.now); at > w.now+lead+spread {
				nodes = append(nodes, "a pause")
			}
		}
	}
	return nodes
}

// come has a task come by itself. If it gets no start, it has a place at the end.
func (w *world) come(t *waiting, ahead, from int64) (bool, error) {
	its := w.of(t.scope, w.policy)
	a := Attempt{Scope: t.scope, Text: w.text(t.scope), Waiter: t.waiter(), Ahead: ahead, From: from}
	setCost(&a, t.cost)
	answer, err := w.decide(a, its)
	if err != nil {
		return false, err
	}
	w.say("  status %d, start %d, member %q", answer.Status, answer.Start-epoch, answer.Member)
	f, had := w.flight[t.waiter()], its
	delete(w.flight, t.waiter())
	if f != nil {
		had = its.with(f.Member)
	}
	same := f != nil && f.Shape == had.Shape
	if answer.Status == Claimed || same && f.Start+claimable >= w.now {
		if answer.Status != Claimed || !same || answer.Start != f.Start || f.Start+claimable < w.now {
			return false, wrong("%s comes, has %+v, and gets %+v", t.id, f, answer)
		}
		return true, nil
	}
	if f != nil {
		w.giveBack(t.waiter(), t.scope, had, f.Start, !same)
		w.gather(t.scope, had)
	}
	if answer.Status == Allowed {
		return true, w.admitted(t, its, answer, f != nil, ahead, from)
	}
	if f != nil && answer.Status != MustBack || f == nil && answer.Status != MustJoin {
		return false, wrong("%s gets %+v", t.id, answer)
	}
	if at, sure := w.joint(t.scope, its, w.now+from, t.cost, false); sure && at <= w.now+ahead && (f != nil || w.nobody()) && (its.Pool == nil || its.Pool.Wait == 0) {
		return false, wrong("%s could start at %d, and is to join", t.id, at-epoch)
	}
	place := int64(0)
	if f != nil {
		if place = answer.Start; place != f.Score {
			return false, wrong("%s had place %d, and gets %d", t.id, f.Score, place)
		}
	}
	return false, w.join([]*waiting{t}, []int64{place})
}

// gather has buckets as full as they may be: one from which a late task keeps its charge counts more than there was.
func (w *world) gather(scope string, its Rules) {
	for _, r := range its.Rules {
		if n := r.Numbers; r.Kind == 'T' {
			k := w.counter(r, scope)
			k.z, k.vague = max(k.z, w.now*n[0]+n[2]*n[1]-n[3]*n[0]), true
		}
	}
}

func setCost(a *Attempt, cost string) {
	if a.Costs = cost; !strings.Contains(cost, "=") {
		a.Costs, a.Cost = "", unitsOf(Rule{}, cost)
	}
}

// nobody waits, and each queue's last dispatch had room to see that.
func (w *world) nobody() bool {
	for _, line := range w.lines {
		if len(line) > 0 {
			return false
		}
	}
	for _, unread := range w.unread {
		if unread {
			return false
		}
	}
	return true
}

// admitted checks that a task that came by itself keeps the rules and overtakes nobody.
func (w *world) admitted(t *waiting, all Rules, answer Answer, first bool, ahead, from int64) error {
	its := all.with(answer.Member)
	if err := w.chosen(t.scope, all, answer.Member, w.now+from, t.cost, answer.Start); err != nil {
		return err
	}
	if soonest, _ := w.joint(t.scope, its, w.now+from, t.cost, true); answer.Start < soonest || answer.Start > w.now+ahead {
		return wrong("%s starts at %d, not before %d", t.id, answer.Start-epoch, soonest-epoch)
	}
	if len(w.lines[t.line()]) > 0 && !first {
		return wrong("%s overtakes %v of its own line", t.id, names(w.lines[t.line()]))
	}
	for _, line := range sortedKeys(w.lines) {
		if nodes := w.looked[line]; len(w.lines[line]) > 0 && len(nodes) == 1 && !first && w.next > w.now {
			for level := range len(its.Weights) + 1 {
				if nodeOf(t.scope, level) == nodes[0] && w.lines[line][0].cost == "1" {
					return wrong("%s overtakes %s, which waits for %q", t.id, w.lines[line][0].id, nodes[0])
				}
			}
		}
	}
	return w.take(t.waiter(), t.scope, its, t.cost, answer.Start, 0)
}

// decide sends one attempt.
func (w *world) decide(a Attempt, its Rules) (Answer, error) {
	w.calls++
	w.say("decide %s %s%s cost %d%s ahead %d from %d", a.Scope, a.Waiter, a.ID, a.Cost, a.Costs, a.Ahead, a.From)
	reply, err := w.run("decide", DecideArgs(w.clock(), string(seven(make([]byte, 9), w.calls)), "1", []Attempt{a}))
	if err != nil {
		return Answer{}, err
	}
	pooled := func(int) bool { return its.Pool != nil }
	now, answers, err := ReadDecide(reply, 1, pooled, func(_ int, member string) int { return len(its.with(member).Rules) })
	if err != nil || now != w.now {
		return Answer{}, wrong("decide answers %q: %v", reply, err)
	}
	return answers[0], nil
}
