package wire

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// What the model knows of pools. The rules of a scope with a pool are one of several: each has a pool of the one member whose rules it
// has beside those of the path.

// members are those from which one is to be chosen.
func (r Rules) members() []MemberRules {
	if r.Pool == nil || len(r.Pool.Members) == 1 {
		return nil
	}
	return r.Pool.Members
}

func (r Rules) member(name string) *MemberRules {
	i := slices.IndexFunc(r.Pool.Members, func(m MemberRules) bool { return m.Name == name })
	return &r.Pool.Members[i]
}

// each returns the rules that may apply: with a pool, those with each member.
func (r Rules) each() (list []Rules) {
	for i, m := range r.members() {
		own, pool := r, *r.Pool
		pool.Members = r.Pool.Members[i : i+1]
		own.Pool, own.Shape = &pool, r.Shape/2+m.Shape
		own.Rules = append(slices.Clip(r.Rules), m.Rules...)
		list = append(list, own)
	}
	if list == nil {
		return []Rules{r}
	}
	return list
}

// with returns the rules of the path and of a member.
func (r Rules) with(name string) Rules {
	for _, own := range r.each() {
		if own.Pool != nil && own.Pool.Members[0].Name == name {
			return own
		}
	}
	return r
}

// nodes are those of a scope and of the chosen member.
func (r Rules) nodes(scope string) (nodes []string) {
	for level := range strings.Count(scope, "/") + 1 {
		nodes = append(nodes, nodeOf(scope, level))
	}
	if r.Pool != nil && r.members() == nil {
		at := nodeOf(scope, r.Pool.Level) + "/%40" + r.Pool.Members[0].Name
		for level := r.Pool.Level + 1; level <= strings.Count(at, "/"); level++ {
			nodes = append(nodes, nodeOf(at, level))
		}
	}
	return nodes
}

// nodeAt is the node of a rule.
func (w *world) nodeAt(r Rule, scope string) string {
	if names := w.belongs[r.Name]; names != nil {
		scope = nodeOf(scope, w.pool.Level) + "/%40" + names[0]
	}
	return nodeOf(scope, r.Level)
}

// poolOf gives a history a pool: two members alone, and sometimes two that share an account.
func (h *history) poolOf() {
	h.pool = &PoolRules{Level: h.IntN(2), Drain: h.IntN(3) == 0}
	h.pool.Affine = !h.pool.Drain && h.IntN(2) == 0
	if (h.pool.Affine || h.pool.Drain) && h.IntN(2) == 0 {
		h.pool.Wait = h.Int64N(second)
	}
	h.belongs = map[string][]string{}
	if h.IntN(2) == 0 {
		h.rules = slices.DeleteFunc(h.rules, func(r Rule) bool { return r.Level == h.pool.Level })
	}
	add := func(name string, level int, members ...string) {
		r := levels[0][h.IntN(len(levels[0]))]
		if level == 2 {
			r = levels[2][h.IntN(len(levels[2]))]
		}
		r.Name, r.Level = name, h.pool.Level+level
		if !h.ones && h.IntN(4) == 0 {
			r.Unit = []string{"tokens", "*"}[h.IntN(2)]
		}
		h.rules, h.belongs[name] = append(h.rules, r), members
	}
	names := []string{"one", "two"}
	add("of one", 1, "one")
	add("of two", 1, "two")
	if h.IntN(2) == 0 {
		add("parallel", 1, "two")
		h.rules[len(h.rules)-1].Kind, h.rules[len(h.rules)-1].Numbers, h.rules[len(h.rules)-1].Unit = 'C', []int64{3, second}, ""
	}
	if h.IntN(2) == 0 {
		names = append(names, "acc/key1", "acc/key2")
		add("account", 1, "acc/key1", "acc/key2")
		add("key1", 2, "acc/key1")
		add("key2", 2, "acc/key2")
	}
	for i, name := range names {
		h.pool.Members = append(h.pool.Members, MemberRules{Name: name, Shape: int64(1000 + i), Weight: 1 + h.Int64N(3), Priority: h.Int64N(2)})
	}
}

// before are the members that go before another one.
func (r Rules) before(name string) (list []Rules) {
	m := r.member(name)
	for _, own := range r.ordered() {
		o := own.Pool.Members[0]
		if o.Priority > m.Priority || r.Pool.Drain && o.Priority == m.Priority && o.Name != name && o.Shape < m.Shape {
			list = append(list, own)
		}
	}
	return list
}

// ordered is each in the order of a drained pool.
func (r Rules) ordered() []Rules {
	return slices.SortedStableFunc(slices.Values(r.each()), func(a, b Rules) int { return int(b.Pool.Members[0].Priority - a.Pool.Members[0].Priority) })
}

// drains reports whether a pool waits for each member before it takes the next.
func (r Rules) drains() bool { return r.members() != nil && r.Pool.Drain && r.Pool.Wait > 0 }

// path is when the rules of a path alone admit a cost.
func (w *world) path(scope string, its Rules, from int64, cost string, hope bool) int64 {
	its.Pool = nil
	at, _ := w.jointOf(scope, its, from, cost, hope)
	return at
}

// holds reports whether a task may wait for a member of a pool that drains, while a later one has room.
func (w *world) holds(scope string, its Rules, from int64, cost string) bool {
	if !its.drains() {
		return false
	}
	until := w.path(scope, its, from, cost, false) + its.Pool.Wait
	for _, own := range its.ordered() {
		soonest, _ := w.jointOf(scope, own, from, cost, true)
		latest, sure := w.jointOf(scope, own, from, cost, false)
		if w.tries(scope, own) {
			soonest += its.Pool.Wait
		}
		if soonest <= until && (latest > from || !sure) {
			return true
		} else if latest <= from {
			return false
		}
	}
	return false
}

// tries reports whether a member is in a pause that a call has to try: tasks don't wait for it.
func (w *world) tries(scope string, own Rules) bool {
	nodes := slices.DeleteFunc(own.nodes(scope), func(node string) bool { return !strings.Contains(node, "/%40") })
	return slices.ContainsFunc(w.pausesOf(nodes), func(p *pausing) bool { return p.Probes > 0 && p.Ends > w.now })
}

// chosen checks that no other member admits a cost before the start with this one, nor now, if it goes before it.
func (w *world) chosen(scope string, its Rules, name string, from int64, cost string, start int64) error {
	if its.members() == nil {
		return nil
	}
	if at, sure := w.joint(scope, its, from, cost, false); sure && at+its.Pool.Wait < start {
		return wrong("a start at %d with %s, and another member admits it at %d", start-epoch, name, at-epoch)
	}
	latest := from
	if its.drains() {
		latest = w.path(scope, its, from, cost, true) + its.Pool.Wait
	}
	for _, own := range its.before(name) {
		if at, sure := w.jointOf(scope, own, from, cost, false); sure && at <= latest && (at <= from || !w.tries(scope, own)) {
			return wrong("a start at %d with %s, and %s goes before it and admits it at %d", start-epoch, name, own.Pool.Members[0].Name, at-epoch)
		}
	}
	return nil
}

// keeps is until when a first task waits for its own member while another one has room, 0 if it does not.
func (w *world) keeps(t *waiting, its Rules, d Dispatch) (int64, error) {
	if its.drains() {
		if !w.holds(t.scope, its, w.now+d.From, t.cost) {
			return 0, nil
		}
		return w.path(t.scope, its, w.now+d.From, t.cost, false) + its.Pool.Wait, nil
	}
	since, err := w.rdb.HGet(context.Background(), prefix+"keeps", t.scope+"/!").Int64()
	if err != nil || w.now >= since+its.Pool.Wait {
		return 0, nil //nolint:nilerr // it is not there
	}
	if its.Pool.Wait == 0 || since > w.now {
		return 0, wrong("%s keeps to its member since %d", t.id, since-epoch)
	}
	soonest, _ := w.joint(t.scope, its, w.now+d.From, t.cost, false)
	until := max(soonest, w.now+d.From) + its.Pool.Wait
	for _, own := range its.each() {
		at, _ := w.jointOf(t.scope, own, w.now+d.From, t.cost, true)
		latest, _ := w.jointOf(t.scope, own, w.now+d.From, t.cost, false)
		if latest > w.now+d.From && at <= until {
			return until, nil
		}
	}
	return 0, nil
}

// poolWorld is a world in which two members have one place each, and nothing else is limited.
func poolWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.belongs = map[string][]string{"runs of one": {"one"}, "runs of two": {"two"}}
	w.pool = &PoolRules{Members: []MemberRules{{Name: "one", Shape: 1}, {Name: "two", Shape: 2}}}
	for _, name := range []string{"runs of one", "runs of two"} {
		w.rules = append(w.rules, Rule{Kind: 'C', Level: 1, Name: name, Numbers: []int64{1, 60 * second}})
		w.limits[1] = append(w.limits[1], 1)
	}
	return w
}

// "What frees units of a member makes the node above it due."
func TestAMemberMakesItsPoolDue(t *testing.T) {
	w := poolWorld(t)
	w.waits(t, "/a", 2)
	w.waits(t, "/b", 1)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 2 || !slices.Equal(blocked, []string{""}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	for _, f := range w.flight {
		g := f.Grant
		ended := Report{
			Lease: g.Lease(), What: "ended", Text: w.text(g.Scope), Charged: []Charged{{1, 0, Never}},
			Grant: GrantText(g.Start, 0, g.Shape, g.Places, g.Scope, g.Cost, g.Member),
		}
		reply, err := w.run("settle", SettleArgs(w.clock(), ended))
		if _, waits, done, readErr := ReadSettles(reply, 1); err != nil || readErr != nil || !waits || done[0].Status != 1 {
			t.Fatalf("%v, %v, waits %v, done %+v", err, readErr, waits, done)
		}
		w.giveBack(g.Waiter, g.Scope, w.of(g.Scope, 1).with(g.Member), g.Start, true)
		break
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || len(blocked) > 0 {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// What frees units of a member makes the node above it due: also a task that comes too late for its start and goes to another member.
func TestALateTaskFreesItsMember(t *testing.T) {
	w := newWorld(t)
	w.belongs = map[string][]string{"of one": {"one"}, "of two": {"two"}}
	w.pool = &PoolRules{Members: []MemberRules{{Name: "one", Shape: 1}, {Name: "two", Shape: 2, Priority: 1}}}
	w.rules = []Rule{
		{Kind: 'S', Level: 1, Name: "of one", Numbers: []int64{2, 60 * second, 1, 0}},
		{Kind: 'S', Level: 1, Name: "of two", Numbers: []int64{1, second, 1, 0}},
	}
	w.limits[1] = []int64{2, 1}
	if err := w.attempts(Attempt{ID: "call", Cost: 1, Many: 1}, "1", "/a"); err != nil { // with two
		t.Fatal(err)
	}
	w.waits(t, "/a", 1)
	if n, _ := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Fatalf("%d granted, want one with the member one", n)
	}
	late := w.flight[sortedKeys(w.flight)[0]]
	if err := w.join([]*waiting{{queue: "q1", scope: "/b", id: "dear", cost: "2", arrival: 2}}, []int64{0}); err != nil {
		t.Fatal(err)
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 0 || !slices.Equal(blocked, []string{""}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now += 2 * second
	if came, err := w.come(late.waiting, 0, 0); err != nil || !came {
		t.Fatalf("it came %v, %v", came, err)
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// A member's name may have eight names of 128 bytes, and a rule's as many bytes, of which each may be escaped.
func TestLongNames(t *testing.T) {
	w := poolWorld(t)
	long := strings.Repeat("%20", 128)
	name := long + "/" + strings.Repeat("a", 128)
	w.pool.Members[0].Name, w.rules[0].Name, w.belongs[long], w.limits[1] = name, long, []string{name}, []int64{1, 0}
	w.waits(t, "/a", 1)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || len(blocked) > 0 {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	if err := w.attempts(Attempt{Cost: 1, Many: 1}, "1", "/b"); err != nil {
		t.Error(err)
	}
}

// What is damaged in a member's part of a text is dropped, and the caller's rules come in its place.
func TestRepairOfAPool(t *testing.T) {
	w := poolWorld(t)
	w.waits(t, "/a", 1)
	text := w.text("/a")
	w.rdb.HSet(t.Context(), prefix+"rules", "/a", text[:len(text)-20])
	if dropped, err := w.run("repair", []any{w.clock(), "begin"}); err != nil || dropped != int64(1) {
		t.Errorf("%v dropped, %v", dropped, err)
	}
}

// The text of a pool: members have places by their weights, a prime number in all, in tiers by their priorities.
func TestPlacesOfMembers(t *testing.T) {
	t.Parallel()
	member := func(weight, priority int64) MemberRules { return MemberRules{Weight: weight, Priority: priority} }
	for _, c := range []struct {
		pool PoolRules
		want [][]byte
	}{
		{PoolRules{Members: []MemberRules{member(0, 0)}}, [][]byte{{1}}},
		{PoolRules{Members: []MemberRules{member(1, 0), member(1, 0), member(2, 0)}}, [][]byte{{1, 2, 3, 3, 0}}},
		{PoolRules{Members: []MemberRules{member(20, 0), member(10, 1), member(40, 0)}}, [][]byte{{2}, {1, 3, 3}}},
		{PoolRules{Drain: true, Members: []MemberRules{member(0, 0), member(0, 1), member(0, 0)}}, [][]byte{{2}, {1}, {3}}},
	} {
		if got := c.pool.tiers(); !slices.EqualFunc(got, c.want, slices.Equal[[]byte]) {
			t.Errorf("%+v has places %v, want %v", c.pool, got, c.want)
		}
	}
	many := PoolRules{}
	for i := range 100 {
		many.Members = append(many.Members, member(int64(1+i*10), 0))
	}
	if got := many.tiers(); len(got) != 1 || len(got[0]) > 255 || !isPrime(len(got[0])) {
		t.Errorf("100 members have the places %v", got)
	}
}
