package throttle

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "In the order of their turns …, their expected starts and rules are those of InspectWaiter."
func TestQueued(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(10, 1)), func(b *bench) {
		b.ask("p/x", "runs", 1)
		for n := range 5 {
			b.ask("p/x", fmt.Sprint(n), int64(1))
		}
		list, all, err := b.Waitlist().Queued(t.Context(), "p/x", 1, 3)
		if err != nil || all != 5 || len(list) != 3 {
			t.Fatalf("%+v, %d in all, %v", list, all, err)
		}
		for n, got := range list {
			want := b.ticket("p/x", fmt.Sprint(n+1), 1)
			if got.ID != fmt.Sprint(n+1) || got.Scope != "p/x" || got.WaiterStatus != want || want.Ahead != int64(n+1) {
				t.Errorf("place %d: %+v, want %+v", n+1, got, want)
			}
		}
		for n := range 20 {
			b.ask("p/y", fmt.Sprint("y", n), int64(1))
		}
		long, all, err := b.Waitlist().Queued(t.Context(), "p/y", 2, 15)
		if err != nil || all != 20 || len(long) != 15 {
			t.Fatalf("%d of %d, %v", len(long), all, err)
		}
		for n, got := range long { // in more than one call
			if want := fmt.Sprint("y", n+2); got.ID != want || got.Ahead != int64(n+2) || got.Expected != b.ticket("p/y", want, 1).Expected {
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
		b.ask("p/a", "runs", 3)
		for n, cost := range []int64{3, 2, 1} {
			b.ask("p/a", fmt.Sprint(n), cost)
		}
		b.ask("p/a/x", "x", 3)
		b.ask("p/b %", "y", 1)
		b.ask("p", "z", 2)
		list, more, err := b.Waitlist().Outline(t.Context(), "p", 10)
		want := []ScopeWaiting{{"p", 12, 3, 2}, {"p/a", 9, 2, 6}, {"p/a/x", 3, 1, 3}, {"p/b %", 1, 1, 1}}
		if err != nil || more || !reflect.DeepEqual(list, want) {
			t.Errorf("%+v, more %t, %v; want %+v", list, more, err, want)
		}
		list, more, err = b.Waitlist().Outline(t.Context(), "p", 2)
		if err != nil || !more || !reflect.DeepEqual(list, want[:2]) {
			t.Errorf("two at most: %+v, more %t, %v", list, more, err)
		}
		list, err = b.Waitlist().WaitingIn(t.Context(), "p", "p/b %", "p/none", "p")
		if want := []ScopeWaiting{{"p/b %", 1, 1, 1}, {"p/none", 0, 0, 0}, {"p", 12, 3, 2}}; err != nil || !reflect.DeepEqual(list, want) {
			t.Errorf("%+v, %v; want %+v", list, err, want)
		}
	})
}

// The longest wait is that of the first waiter of a full queue, whatever came later, and of no other provider.
func TestOldestWait(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, surveyed(t), func(b *bench) {
		oldest := func(provider string) time.Duration {
			b.t.Helper()
			since, err := b.Waitlist().OldestWait(ctx, provider)
			noError(b.t, err)
			if since.IsZero() {
				return -1
			}
			return time.UnixMicro(b.now.Load()).Sub(since).Round(10 * ms)
		}
		if got := oldest("p"); got != -1 {
			b.t.Errorf("nothing waits, for %s", got)
		}
		for n := range 4 { // 2 start
			b.ask("p/a", fmt.Sprint("a", n), 1)
		}
		b.pass(7 * sec)
		for n := range 20 {
			for _, id := range []string{"one", "two", "three"} {
				b.ask(fmt.Sprint("p/b", n), id, 1)
			}
		}
		b.pass(2 * sec)
		for n := range 9 {
			b.ask("q", fmt.Sprint("q", n), 1)
		}
		b.pass(sec)
		if got, fullest := oldest("p"), 3*sec; got != 10*sec && got != fullest { // of the 8 fullest of 21
			b.t.Errorf("the first of p waits for %s", got)
		}
		for n := range 9 { // now it is one of the fullest
			b.ask("p/a", fmt.Sprint("more", n), 1)
		}
		if got := oldest("p"); got != 10*sec {
			b.t.Errorf("the first of p/a waits for %s", got)
		}
		if got := oldest("q"); got != sec {
			b.t.Errorf("the first of q waits for %s", got)
		}
	})
}
