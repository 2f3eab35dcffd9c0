package wire

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// keepsWorld is a world in which the first member has one start in `per`, the other one many, and tasks keep to the first for `wait`.
func keepsWorld(t *testing.T, per, wait int64, rules ...Rule) *world {
	t.Helper()
	w := newWorld(t, rules...)
	w.belongs = map[string][]string{"of one": {"one"}, "of two": {"two"}}
	w.pool = &PoolRules{Affine: true, Wait: wait, Members: []MemberRules{{Name: "one", Shape: 1, Priority: 1}, {Name: "two", Shape: 2}}}
	w.rules = append(w.rules,
		Rule{Kind: 'S', Level: 1, Name: "of one", Numbers: []int64{1, per, 1, 0}},
		Rule{Kind: 'S', Level: 1, Name: "of two", Numbers: []int64{50, second, 1, 0}})
	w.limits[1] = append(w.limits[1], 1, 50)
	return w
}

func (w *world) joins(t *testing.T, queue, scope, id, cost string) {
	t.Helper()
	w.joined++
	if err := w.join([]*waiting{{queue: queue, scope: scope, id: id, cost: cost, arrival: int64(w.joined)}}, []int64{0}); err != nil {
		t.Fatal(err)
	}
}

// While another member has room, tasks wait for their own one for no longer than the pool says.
func TestTaskKeepsToItsMember(t *testing.T) {
	w := keepsWorld(t, 4*second, 2*second)
	w.waits(t, "/a", 2)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 2 {
		t.Errorf("%d granted at once, %q blocked; its member has no room for four seconds", n, blocked)
	}
	w = keepsWorld(t, second, 2*second)
	w.waits(t, "/a", 2)
	granted := 1
	for _, pause := range []int64{1500000, 3 * second} { // the member's, each time that it is looked at
		if n, blocked := w.grants(t, Dispatch{Most: 10}); n != granted || !slices.Equal(blocked, []string{"/a/!"}) {
			t.Fatalf("%d granted, %q blocked", n, blocked)
		}
		if err := w.report(Word{Verb: "pause", Name: "/%40one", Numbers: [5]int64{pause}}); err != nil {
			t.Fatal(err)
		}
		w.now, granted = w.next, 0
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || w.now > epoch+2*second {
		t.Fatalf("%d granted after %d µs, %q blocked: it has waited long enough", n, w.now-epoch, blocked)
	}
}

// If the rules of the path do not admit a task, it waits for those at their node: a unit that comes back there wakes it.
func TestKeepsWaitsForItsPathAtItsNode(t *testing.T) {
	w := keepsWorld(t, 10500000, 2*second, Rule{Kind: 'S', Name: "path", Numbers: []int64{1, 10 * second, 1, 0}})
	w.waits(t, "/a", 2)
	w.waits(t, "/b", 1)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{""}) {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
	w.now += second
	if _, err := w.run("reset", []any{w.clock(), "", w.text(""), "\x01"}); err != nil {
		t.Fatal(err)
	}
	w.counters = map[string]*counter{}
	if _, err := w.run("reset", []any{w.clock(), "/%40one", w.memberText("one"), "\x01"}); err != nil {
		t.Fatal(err)
	}
	reply, err := w.run("dispatch", Dispatch{Lead: lead, Spread: spread, Most: 10, Serves: []Weighted{{"q1", 1}}, Version: 1, Policy: 1}.Args(w.clock()))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ReadDispatch(reply); len(got.Granted) != 1 {
		t.Errorf("%d granted after all rules were reset, the next look is in %d µs", len(got.Granted), got.Next-w.now)
	}
}

// memberText is the text of the rules of a member's own scope.
func (w *world) memberText(name string) string {
	its := w.plain("/a", 1)
	out := Rules{Version: 1, Policy: 1, Shape: 9, Until: Never, Weights: []float64{1}, Rules: its.member(name).Rules}
	return out.Text()
}

// When a task that keeps to its member is withdrawn, the next one, which may need less, is looked at.
func TestKeepsIsWithdrawn(t *testing.T) {
	w := keepsWorld(t, 20*second, 30*second)
	w.ones = false
	w.limits[1][0] = 5
	w.joins(t, "q1", "/a", "first", "3")
	w.joins(t, "q1", "/a", "dear", "5")
	w.joins(t, "q1", "/a", "cheap", "1")
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{"/a/!"}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now += second
	if _, err := w.run("ack", AckArgs(w.clock(), []News{{Waiter: "q1:dear", What: "gone", Path: "/a", Text: w.text("/a")}})); err != nil {
		t.Fatal(err)
	}
	w.lines["q1:/a"] = w.lines["q1:/a"][1:]
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// So is one that joins before it, by its priority.
func TestKeepsAndATaskGoesBefore(t *testing.T) {
	w := keepsWorld(t, 20*second, 30*second)
	w.ones = false
	w.limits[1][0] = 5
	w.joins(t, "q1", "/a", "first", "3")
	w.joins(t, "q1", "/a", "dear", "5")
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{"/a/!"}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now += second
	if err := w.join([]*waiting{{queue: "q1", scope: "/a", id: "urgent", cost: "1", priority: 1, arrival: 9}}, []int64{0}); err != nil {
		t.Fatal(err)
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// Since when a task keeps to its member is forgotten when it is withdrawn: the next one of the scope, later, keeps to it, too.
func TestKeepsIsForgotten(t *testing.T) {
	w := keepsWorld(t, second, 2*second)
	for range 2 {
		w.waits(t, "/z", 1)
		if n, _ := w.grants(t, Dispatch{Most: 10}); n != 1 {
			t.Fatalf("%d granted", n)
		}
		w.waits(t, "/a", 1)
		if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 0 || !slices.Equal(blocked, []string{"/a/!"}) {
			t.Fatalf("%d granted, %q blocked: it does not keep to its member", n, blocked)
		}
		waiter := w.lines["q1:/a"][0].waiter()
		if _, err := w.run("ack", AckArgs(w.clock(), []News{{Waiter: waiter, What: "gone", Path: "/a", Text: w.text("/a")}})); err != nil {
			t.Fatal(err)
		}
		delete(w.lines, "q1:/a")
		if all := w.rdb.HGetAll(t.Context(), prefix+"keeps").Val(); len(all) > 0 {
			t.Errorf("no task waits, and keeps has %v", all)
		}
		w.now += 2500000
	}
}

// A clock that steps back makes no task keep to its member for longer.
func TestKeepsAndTheClockStepsBack(t *testing.T) {
	w := keepsWorld(t, second, 2*second)
	w.waits(t, "/a", 2)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{"/a/!"}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now -= 3600 * second
	if err := w.report(Word{Verb: "pause", Name: "/%40one", Numbers: [5]int64{1800 * second}}); err != nil {
		t.Fatal(err)
	}
	reply, err := w.run("dispatch", Dispatch{Lead: lead, Spread: spread, Most: 10, Serves: []Weighted{{"q1", 1}}, Version: 1, Policy: 1}.Args(w.clock()))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ReadDispatch(reply); len(got.Granted) != 1 {
		t.Errorf("%d granted, the next look is in %d µs", len(got.Granted), got.Next-w.now)
	}
}

// What is damaged in keeps is repaired.
func TestKeepsIsRepaired(t *testing.T) {
	w := keepsWorld(t, second, 2*second)
	w.waits(t, "/a", 2)
	w.rdb.HSet(t.Context(), prefix+"keeps", "/a/!", "x")
	d := Dispatch{Lead: lead, Spread: spread, Most: 10, Serves: []Weighted{{"q1", 1}}, Version: 1, Policy: 1}.Args(w.clock())
	_, err := w.run("dispatch", d)
	t.Log(err)
	if _, err := w.run("repair", []any{w.clock(), "begin"}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"drop", "enter"} {
		if _, err := w.run("repair", []any{w.clock(), verb, "/a"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.run("dispatch", d); err != nil {
		t.Error(err)
	}
}

// A pool whose member's period is about to end is looked at when it has ended, not again and again.
func TestPoolAtTheEndOfAPeriod(t *testing.T) {
	w := newWorld(t)
	w.belongs = map[string][]string{"of one": {"one"}}
	w.pool = &PoolRules{Members: []MemberRules{{Name: "one", Shape: 1}}}
	w.pool.Members = append(w.pool.Members, MemberRules{Name: "two", Shape: 2})
	w.belongs["of two"] = []string{"two"}
	for _, name := range []string{"of one", "of two"} {
		w.rules = append(w.rules, Rule{Kind: 'K', Level: 1, Name: name, Numbers: []int64{5, 0, 0, 10 * second, second, 0, 0}})
		w.limits[1] = append(w.limits[1], 5)
	}
	w.waits(t, "/a", 2)
	w.now += 10*second - w.now%(10*second) - second - 20000 // 20 ms before the last second, which admits nothing
	d := Dispatch{Lead: 60000, Spread: spread, From: 50000, Most: 10, Serves: []Weighted{{"q1", 1}}, Version: 1, Policy: 1}
	d.Fresh = map[string]string{"/a": w.text("/a")}
	reply, err := w.run("dispatch", d.Args(w.clock()))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := ReadDispatch(reply)
	if len(got.Stale) > 0 || len(got.Granted) > 0 || got.Next < w.now+10000 {
		t.Errorf("%+v: the next look is in %d µs", got, got.Next-w.now)
	}
}

// What comes back to a member is seen by the task that keeps to it within a second.
func TestKeepsIsWokenByItsMember(t *testing.T) {
	w := keepsWorld(t, 20*second, 30*second)
	w.waits(t, "/a", 2)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{"/a/!"}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	if _, err := w.run("reset", []any{w.clock(), "/%40one", w.memberText("one"), "\x01"}); err != nil {
		t.Fatal(err)
	}
	w.now += second
	reply, err := w.run("dispatch", Dispatch{Lead: lead, Spread: spread, Most: 10, Serves: []Weighted{{"q1", 1}}, Version: 1, Policy: 1}.Args(w.clock()))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ReadDispatch(reply); len(got.Granted) != 1 {
		t.Errorf("%d granted after its member was reset, the next look is in %d µs", len(got.Granted), got.Next-w.now)
	}
}

// Two queues have tasks of a scope, the first strictly before the other. The task of the other keeps to its member for no longer than
// the pool says, whatever the first does.
func TestKeepsOfTwoQueues(t *testing.T) {
	w := keepsWorld(t, second, 1500000)
	for i := range 20 {
		w.joins(t, "q1", "/a", fmt.Sprint("one", i), "1")
	}
	w.joins(t, "q2", "/a", "two", "1")
	d := Dispatch{Lead: lead, Spread: spread, Most: 10, Serves: []Weighted{{"q1", 0}, {"q2", 0}}, Version: 1, Policy: 1}
	began := w.now
	for w.now < began+15*second {
		reply, err := w.run("dispatch", d.Args(w.clock()))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := ReadDispatch(reply)
		for _, g := range got.Granted {
			t.Log(g.Waiter, g.Member, g.Start-began)
			w.rdb.Del(t.Context(), prefix+"flight", prefix+"flights")
			if g.Queue == "q2" {
				if g.Start > began+2*second {
					t.Errorf("it starts after %d µs", g.Start-began)
				}
				return
			}
		}
		w.now = max(got.Next, w.now+1)
	}
	t.Errorf("it does not start within 15 s, and the member two has room")
}

// Tenants that keep to one member take turns with it.
func TestKeepersTakeTurns(t *testing.T) {
	w := keepsWorld(t, 2*second, 60*second)
	w.waits(t, "/a", 5)
	w.waits(t, "/c", 5)
	for range 50 {
		w.grants(t, Dispatch{Most: 10})
		a, c := len(w.lines["q1:/a"]), len(w.lines["q1:/c"])
		if math.Abs(float64(a-c)) > 1 {
			t.Fatalf("after %d µs, %d and %d wait", w.now-epoch, a, c)
		}
		if a+c == 0 {
			return
		}
		w.now = max(w.now, w.next)
	}
	t.Error("some still wait")
}

// Tasks below a pool that drains wait for its first member, however long they have waited, by turns. They take the second when the first
// has nothing for longer than the pool says.
func TestDrainedMemberIsWaitedFor(t *testing.T) {
	w := keepsWorld(t, 2*second, 3*second)
	w.pool.Affine, w.pool.Drain = false, true
	w.waits(t, "/a", 4)
	w.waits(t, "/b", 4)
	for i := range 8 {
		n, blocked := w.grants(t, Dispatch{Most: 10})
		for n == 0 && w.next > w.now { // it looks for what is overdue, too
			w.now = w.next
			n, blocked = w.grants(t, Dispatch{Most: 10})
		}
		if n != 1 || i < 7 && !slices.Equal(blocked, []string{""}) || math.Abs(float64(len(w.lines["q1:/a"])-len(w.lines["q1:/b"]))) > 2 {
			t.Fatalf("%d granted after %d µs, %q blocked, %d and %d wait", n, w.now-epoch, blocked, len(w.lines["q1:/a"]), len(w.lines["q1:/b"]))
		}
	}
	if took := w.now - epoch; took > 14*second {
		t.Errorf("8 starts, one in two seconds, took %d µs", took)
	}
	w.now = max(w.now, epoch+14*second)
	w.waits(t, "/a", 2)
	if err := w.report(Word{Verb: "pause", Name: "/%40one", Numbers: [5]int64{3*second + 1}}); err != nil {
		t.Fatal(err)
	}
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 2 || len(blocked) > 0 {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// Tasks wait for the first member no longer than another limit of it counts.
func TestDrainedMemberIsCorrected(t *testing.T) {
	w := keepsWorld(t, 20*second, 60*second)
	w.pool.Affine, w.pool.Drain = false, true
	w.limits[1][0] = 5
	end := w.now + 5*second
	if err := w.correct(w.rules[0], "/%40one", correction{until: end, limit: 1}); err != nil {
		t.Fatal(err)
	}
	w.waits(t, "/a", 2)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{""}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now = end
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Errorf("%d granted as the limit is 5 again, %q blocked", n, blocked)
	}
}
