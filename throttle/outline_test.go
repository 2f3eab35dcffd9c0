package throttle

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// "In the order of their turns …, their expected starts and rules are those of InspectWaiter."
func TestQueued(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(10, 1)), func(b *bench) {
		i := inspector{b}
		i.ask("p/x", "runs", 1)
		for n := range 5 {
			i.ask("p/x", fmt.Sprint(n), int64(1))
		}
		list, all, err := b.Waitlist().Queued(t.Context(), "p/x", 1, 3)
		if err != nil || all != 5 || len(list) != 3 {
			t.Fatalf("%+v, %d in all, %v", list, all, err)
		}
		for n, got := range list {
			want := i.ticket("p/x", fmt.Sprint(n+1), 1)
			if got.ID != fmt.Sprint(n+1) || got.Scope != "p/x" || got.WaiterStatus != want || want.Ahead != int64(n+1) {
				t.Errorf("place %d: %+v, want %+v", n+1, got, want)
			}
		}
		for n := range 20 {
			i.ask("p/y", fmt.Sprint("y", n), int64(1))
		}
		long, all, err := b.Waitlist().Queued(t.Context(), "p/y", 2, 15)
		if err != nil || all != 20 || len(long) != 15 {
			t.Fatalf("%d of %d, %v", len(long), all, err)
		}
		for n, got := range long { // in more than one call
			if want := fmt.Sprint("y", n+2); got.ID != want || got.Ahead != int64(n+2) || got.Expected != i.ticket("p/y", want, 1).Expected {
				t.Errorf("place %d: %+v, want %s", n+2, got, want)
			}
		}
		if list, all, err = b.Waitlist().Queued(t.Context(), "p/x", 10, 3); err != nil || all != 5 || len(list) != 0 {
			t.Errorf("beyond the end: %+v, %d in all, %v", list, all, err)
		}
	})
}

// "How much waits in a scope and the scopes below it", most first, bounded.
func TestOutline(t *testing.T) {
	t.Parallel()
	rules := tenants(t, "p", []policy.Rule{bucket(1, 3)}, []policy.Rule{bucket(1, 3)})
	onBoth(t, Config{}, rules, func(b *bench) {
		i := inspector{b}
		i.ask("p/a", "runs", 3)
		for n, cost := range []int64{3, 2, 1} {
			i.ask("p/a", fmt.Sprint(n), cost)
		}
		i.ask("p/a/x", "x", 3)
		i.ask("p/b %", "y", 1)
		i.ask("p", "z", 2)
		list, more, err := b.Waitlist().Outline(t.Context(), "p", 10)
		want := []ScopeWaiting{{"p", 12, 3}, {"p/a", 9, 2}, {"p/a/x", 3, 1}, {"p/b %", 1, 1}}
		if err != nil || more || !reflect.DeepEqual(list, want) {
			t.Errorf("%+v, more %t, %v; want %+v", list, more, err, want)
		}
		list, more, err = b.Waitlist().Outline(t.Context(), "p", 2)
		if err != nil || !more || !reflect.DeepEqual(list, want[:2]) {
			t.Errorf("two at most: %+v, more %t, %v", list, more, err)
		}
		list, err = b.Waitlist().WaitingIn(t.Context(), "p", "p/b %", "p/none", "p")
		if want := []ScopeWaiting{{"p/b %", 1, 1}, {"p/none", 0, 0}, {"p", 12, 3}}; err != nil || !reflect.DeepEqual(list, want) {
			t.Errorf("%+v, %v; want %+v", list, err, want)
		}
	})
}
