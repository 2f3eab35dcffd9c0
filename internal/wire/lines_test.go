package wire

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// bucket is a rule that drains p parts a µs, of which a unit has q.
func bucket(name string, level int, p, q, burst int64) Rule {
	return Rule{Kind: 'T', Level: level, Name: name, Numbers: []int64{p, q, burst, 0}}
}

// newWorld returns the world of two tenants under some rules of the provider.
func newWorld(t *testing.T, rules ...Rule) *world {
	t.Helper()
	h := newHistory(redistest.Client(t), 2)
	h.pool, h.rules, h.limits = nil, rules, map[int64][]int64{1: nil}
	for _, r := range rules {
		h.limits[1] = append(h.limits[1], capacity(r.Kind, r.Numbers))
	}
	return h.world
}

// waits has tasks of a scope join.
func (w *world) waits(t *testing.T, scope string, many int) {
	t.Helper()
	for range many {
		w.joined++
		task := &waiting{queue: "q1", scope: scope, id: fmt.Sprint("task ", w.joined), cost: "1", arrival: int64(w.joined)}
		if err := w.join([]*waiting{task}, []int64{0}); err != nil {
			t.Fatal(err)
		}
	}
}

// grants dispatches, and returns how many tasks are granted, and the nodes that are blocked then.
func (w *world) grants(t *testing.T, d Dispatch) (int, []string) {
	t.Helper()
	d.Lead, d.Spread, d.Serves = lead, spread, []Weighted{{"q1", 1}}
	got, err := w.dispatch(d)
	if err != nil {
		t.Fatal(err)
	}
	blocked, err := w.rdb.ZRange(t.Context(), prefix+"blocked", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(got.Granted), blocked
}

// "29 to 30 days after the last task has joined: the first of a day renews it, and all keys above it": docs/keys.md. A line that is
// never empty keeps its place in the tree.
func TestABacklogIsKept(t *testing.T) {
	w := newWorld(t, bucket("acct", 0, 1, second, 1))
	w.waits(t, "/a/refunds", 2)
	w.waits(t, "/b", 1)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{""}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	keys := w.rdb.Keys(t.Context(), prefix+"*").Val()
	const days = 24 * time.Hour
	for _, key := range keys {
		w.rdb.Expire(t.Context(), key, 28*days)
	}
	w.waits(t, "/a/refunds", 1)
	for _, name := range []string{"q:q1:/a/refunds", "ready:q1:/a/refunds", "ready:q1:/a", "ready:q1:", "ready", "blocked", "queues", "rules", "units", "sequence"} {
		if left := w.rdb.TTL(t.Context(), prefix+name).Val(); left < 29*days {
			t.Errorf("%s ends in %v, of %q", name, left, keys)
		}
	}
}

// A full concurrency rule blocks its node also where a lease ends before the task of a distant caller could start: not each leaf.
func TestAFullRuleBlocksItsNode(t *testing.T) {
	w := newWorld(t, Rule{Kind: 'C', Name: "runs", Numbers: []int64{1, 250000}})
	w.waits(t, "/a", 2)
	w.waits(t, "/b", 2)
	if n, blocked := w.grants(t, Dispatch{Most: 10}); n != 1 || !slices.Equal(blocked, []string{""}) {
		t.Fatalf("%d granted, %q blocked", n, blocked)
	}
	w.now += 200000
	w.rdb.ZAdd(t.Context(), prefix+"blocked", redis.Z{}) // as what frees units does: the node is due
	if n, blocked := w.grants(t, Dispatch{Most: 10, From: 60000}); n != 0 || !slices.Equal(blocked, []string{""}) {
		t.Errorf("%d granted, %q blocked", n, blocked)
	}
}

// What is due before the next call of a distant caller could arrive is taken up, if the caller asks for tasks; no other takes it.
func TestADistantCallerLooksEarlier(t *testing.T) {
	w := newWorld(t, bucket("acct", 0, 1, second, 1))
	w.waits(t, "/a", 2)
	if n, _ := w.grants(t, Dispatch{Most: 10}); n != 1 {
		t.Fatalf("%d granted", n)
	}
	w.now += second - lead - spread/2
	for _, c := range []struct {
		from    int64
		most, n int
	}{{0, 10, 0}, {60000, 0, 0}, {60000, 10, 1}} {
		if n, blocked := w.grants(t, Dispatch{Most: c.most, From: c.from}); n != c.n || n == 0 && !slices.Equal(blocked, []string{""}) {
			t.Errorf("from %d, most %d: %d granted, %q blocked", c.from, c.most, n, blocked)
		}
	}
}
