package wire

import (
	"math"
	"slices"
	"testing"
)

// turnsOf dispatches, and returns the scopes of the tasks that are granted, in their order.
func (w *world) turnsOf(t *testing.T, most int) (scopes []string) {
	t.Helper()
	got, err := w.dispatch(Dispatch{Lead: lead, Spread: spread, Most: most, Serves: []Weighted{{"q1", 1}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range got.Granted {
		scopes = append(scopes, g.Scope)
	}
	w.rdb.Del(t.Context(), prefix+"flight", prefix+"flights")
	clear(w.flight)
	return scopes
}

func count(scopes []string, scope string) (n int) {
	for _, s := range scopes {
		if s == scope {
			n++
		}
	}
	return n
}

// A child that was away while others took their turns has saved nothing up, even if they took them in the call in which it comes back.
func TestAwayWhileOthersTakeTurns(t *testing.T) {
	w := newWorld(t, bucket("acct", 0, 1, 1000, 1))
	w.weights["/a"], w.weights["/b"], w.weights["/c"] = 1, 1, 0.1
	w.waits(t, "/a", 100)
	w.waits(t, "/b", 300)
	w.waits(t, "/c", 1)
	w.turnsOf(t, 4) // so /c leaves with a higher tag than the others
	if err := w.report(Word{Verb: "pause", Name: "/a", Numbers: [5]int64{second}}); err != nil {
		t.Fatal(err)
	}
	w.turnsOf(t, 2) // /a leaves with the lowest
	w.now += second - 50000
	got := w.turnsOf(t, 200)
	i := slices.Index(got, "/a")
	if i < 20 {
		t.Fatalf("/a comes back after %d turns: %q", i, got)
	}
	got = append(got[i:], w.turnsOf(t, 200)...)
	if n, m := count(got, "/a"), count(got, "/b"); math.Abs(float64(n-m)) > 3 {
		t.Errorf("once both could be served, /a had %d turns and /b %d: %q", n, m, got)
	}
}

// A child that comes back in the call in which the last of the others leave starts where they are: their next tasks wait for no turns that
// it has not missed.
func TestComesAsTheLastLeaves(t *testing.T) {
	w := keepsWorld(t, 10000, second)
	w.waits(t, "/a", 44)
	w.waits(t, "/b", 44)
	w.waits(t, "/c", 120)
	if err := w.report(Word{Verb: "pause", Name: "/c", Numbers: [5]int64{second}}); err != nil {
		t.Fatal(err)
	}
	end := w.now + second
	for range 80 {
		if got := w.turnsOf(t, 1); len(got) != 1 || got[0] == "/c" {
			t.Fatalf("%q", got)
		}
		w.now += 10000
	}
	w.now = end - 65000
	got := w.turnsOf(t, 200)
	if count(got, "/c") == 0 {
		t.Fatalf("%q", got)
	}
	w.waits(t, "/a", 30)
	got = nil
	for range 40 {
		got = append(got, w.turnsOf(t, 10)...)
		w.now += 10000
	}
	if n, m := count(got, "/a"), count(got, "/c"); math.Abs(float64(n-m)) > 6 {
		t.Errorf("/a had %d turns and /c %d: %q", n, m, got)
	}
}
