package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// Thousands of scopes line up in one call, more than one command of a script can have
// arguments for, and each has its turn.
func TestThousandsOfScopesLineUp(t *testing.T) {
	t.Parallel()
	const scopes = 5000
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, bucket(1_000_000, 1))) // whose Lua has such a bound
	b.decide(Request{Scope: "p/first", ID: NewID()})
	asks := make([]Ask, scopes)
	for i := range asks {
		asks[i] = Ask{Scope: fmt.Sprint("p/", i), Ticket: "a"}
	}
	placed, err := b.LineUp(ctx, asks, 0, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	for i, p := range placed {
		if !p.Waits || p.Err != nil || p.Expected < 0 {
			b.t.Fatalf("%s: %+v", asks[i].Scope, p)
		}
	}
	if got, err := b.Inspect(ctx, "p"); err != nil || got.Waiting != scopes || got.Lines != scopes {
		b.t.Errorf("%+v, %v", got, err)
	}
	b.at(2 * time.Second.Microseconds())
	woken, err := b.Dispatch(ctx, DispatchRequest{Provider: "p", Lead: time.Second, Max: 10, All: true})
	if err != nil || len(woken.Granted) == 0 {
		b.t.Errorf("%+v, %v", woken, err)
	}
}
