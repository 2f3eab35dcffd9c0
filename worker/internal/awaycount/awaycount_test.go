package awaycount

import (
	"maps"
	"testing"
	"time"
)

func TestCounts(t *testing.T) {
	t.Parallel()
	var c Counts[string]
	at := func(seconds float64) time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
	}
	c.Add("a", at(10), at(0))
	c.Add("a", at(10.4), at(0))
	c.Add("a", at(20), at(0))
	c.Add("b", at(5), at(0))
	for _, row := range []struct {
		now  float64
		a, b int
	}{{0, 3, 1}, {6.9, 3, 1}, {7, 3, 0}, {11.9, 3, 0}, {12, 1, 0}, {22, 0, 0}} {
		if a, b := c.Of("a", at(row.now)), c.Of("b", at(row.now)); a != row.a || b != row.b {
			t.Errorf("after %g s %d and %d are away, want %d and %d", row.now, a, b, row.a, row.b)
		}
	}
	if len(c.due) != 0 {
		t.Errorf("%d keys are held for nothing", len(c.due))
	}
	c.Add("a", at(30), at(22))
	if all := c.All(at(25)); !maps.Equal(all, map[string]int{"a": 1}) {
		t.Errorf("away: %v", all)
	}
}

// Keys are bounded, and make room when their tasks have come.
func TestCountsAreBounded(t *testing.T) {
	t.Parallel()
	var c Counts[int]
	now := time.Unix(1_800_000_000, 0)
	for key := range most {
		if !c.Add(key, now.Add(time.Minute), now) {
			t.Fatalf("key %d is not counted", key)
		}
	}
	if c.Add(most, now.Add(time.Minute), now) || !c.Add(0, now.Add(time.Minute), now) {
		t.Error("a further key is counted, or a known one is not")
	}
	if n := len(c.All(now)); n != most {
		t.Errorf("%d keys", n)
	}
	now = now.Add(time.Hour)
	if !c.Add(most, now.Add(time.Minute), now) || len(c.due) != 1 {
		t.Errorf("no room for another key: %d are held", len(c.due))
	}
}
