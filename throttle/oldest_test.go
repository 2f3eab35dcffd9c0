package throttle

import (
	"fmt"
	"testing"
	"time"
)

// The longest wait is that of the first waiter of a full queue, whatever came later, and of no other provider.
func TestOldestWait(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, surveyed(t), func(b *bench) {
		i := inspector{b}
		oldest := func(provider string) time.Duration {
			b.t.Helper()
			since, err := b.Waitlist().OldestWait(ctx, provider)
			if err != nil {
				b.t.Fatal(err)
			}
			if since.IsZero() {
				return -1
			}
			return time.UnixMicro(b.now.Load()).Sub(since).Round(10 * ms)
		}
		if got := oldest("p"); got != -1 {
			b.t.Errorf("nothing waits, for %s", got)
		}
		back := Request{Scope: "q", Turn: Turn{WaiterID: "back"}}
		if _, err := b.Waitlist().RequeueFront(ctx, back); err != nil {
			b.t.Fatal(err)
		}
		b.pass(3 * sec)
		if got := oldest("q"); got != 3*sec {
			b.t.Errorf("what came back to the front waits for %s", got)
		}
		if d := b.decide(Request{Scope: "q", ID: NewID(), Turn: back.Turn}); !d.Allowed {
			b.t.Fatalf("%+v", d)
		}
		for n := range 4 { // 2 start
			i.ask("p/a", fmt.Sprint("a", n), 1)
		}
		b.pass(7 * sec)
		for n := range 20 {
			i.ask(fmt.Sprint("p/b", n), "one", 1)
			i.ask(fmt.Sprint("p/b", n), "two", 1)
			i.ask(fmt.Sprint("p/b", n), "three", 1)
		}
		b.pass(2 * sec)
		for n := range 9 {
			i.ask("q", fmt.Sprint("q", n), 1)
		}
		b.pass(sec)
		if got, fullest := oldest("p"), 3*sec; got != 10*sec && got != fullest { // of the 8 fullest of 21
			b.t.Errorf("the first of p waits for %s", got)
		}
		for n := range 9 { // now it is one of the fullest
			i.ask("p/a", fmt.Sprint("more", n), 1)
		}
		if got := oldest("p"); got != 10*sec {
			b.t.Errorf("the first of p/a waits for %s", got)
		}
		if got := oldest("q"); got != sec {
			b.t.Errorf("the first of q waits for %s", got)
		}
	})
}
