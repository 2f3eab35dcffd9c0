package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// OnSpent "receives each grant that takes anything, each refund, and each correction by Settle. It does not receive requests with a waiter id".
func TestOnSpent(t *testing.T) {
	t.Parallel()
	said := ""
	say := func(s Spent) { said += fmt.Sprintf("%s %d %d %s;", s.Scope, s.Tasks, s.Units, s.Costs) }
	calls := policy.Rule{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Hour}
	rules, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"q": {Rules: []policy.Rule{calls}}, "p": {
		Rules: []policy.Rule{calls, {Name: "tokens", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Hour, Unit: "tokens"}},
	}})
	noError(t, err)
	onBoth(t, Config{OnSpent: say}, rules, func(l *bench) {
		step := func(want string, err error) {
			l.t.Helper()
			if noError(l.t, err); said != want {
				l.t.Errorf("got %q, want %q", said, want)
			}
			said = ""
		}
		d, err := l.Allow(ctx, "p/x")
		step("p/x 1 1 ;", err)
		step("p/x -1 -1 ;", l.Refund(ctx, d.Grant))
		step("", l.Refund(ctx, d.Grant))
		step("", errorOf(l.Settle(ctx, d.Grant, policy.Costs{"tokens": 5})))
		step("", errorOf(l.Peek(ctx, Request{Scope: "p/x"})))
		step("", errorOf(l.Decide(ctx, Request{Scope: "p/x", Costs: policy.Costs{policy.Requests: 0}})))
		d, err = l.Decide(ctx, Request{Scope: "p", Cost: 2, ID: "a"})
		step("p 1 2 ;", err)
		step("", errorOf(l.Decide(ctx, Request{Scope: "p", Cost: 2, ID: "a"}))) // again
		step("p 0 -1 requests=-1,tokens=7;", errorOf(l.Settle(ctx, d.Grant, policy.Costs{"requests": 1, "tokens": 7})))
		step("p -1 -1 requests=-1,tokens=-7;", l.Refund(ctx, d.Grant))
		d, err = l.Wait(ctx, Request{Scope: "p", Costs: policy.Costs{"tokens": 500}})
		step("p 1 1 tokens=500;", err)
		step("p 0 0 tokens=-410;", errorOf(l.Settle(ctx, d.Grant, policy.Costs{"tokens": 90})))
		step("", errorOf(l.Settle(ctx, d.Grant, policy.Costs{"tokens": 90})))
		if _, err := l.Settle(ctx, d.Grant, policy.Costs{"tokens": -1}); err == nil {
			l.t.Error("less than nothing was settled")
		}
		step("p -1 -1 tokens=-90;", l.Refund(ctx, d.Grant))
		step("p 1 1 ;", errorOf(l.Start(ctx, Request{Scope: "p"})))
		_, _, err = l.AllowAtMost(ctx, "p", 20)
		step("p 1 9 ;", err)
		step("", errorOf(l.Allow(ctx, "p")))       // a denial
		for _, scope := range []string{"p", "q"} { // one that waits, and one that runs
			d, err = l.Start(ctx, Request{Scope: scope, Waiter: Waiter{ID: "w"}})
			step("", err)
		}
		step("", l.Refund(ctx, d.Grant))
		step("free 1 1 ;", errorOf(l.Allow(ctx, "free"))) // under no rule
	})
}

func errorOf[T any](_ T, err error) error { return err }
