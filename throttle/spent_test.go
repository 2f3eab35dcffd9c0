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
		var d Decision
		step := func(want string, do func() error) {
			l.t.Helper()
			said = ""
			if noError(l.t, do()); said != want {
				l.t.Errorf("got %q, want %q", said, want)
			}
		}
		step("p/x 1 1 ;", func() error { d, err = l.Allow(ctx, "p/x"); return err })
		step("p/x -1 -1 ;", func() error { return l.Refund(ctx, d.Grant) })
		step("", func() error { return l.Refund(ctx, d.Grant) })
		step("", func() error { _, err = l.Settle(ctx, d.Grant, policy.Costs{"tokens": 5}); return err })
		step("", func() error { _, err = l.Peek(ctx, Request{Scope: "p/x"}); return err })
		step("", func() error {
			_, err = l.Decide(ctx, Request{Scope: "p/x", Costs: policy.Costs{policy.Requests: 0}})
			return err
		})
		step("p 1 2 ;", func() error { d, err = l.Decide(ctx, Request{Scope: "p", Cost: 2, ID: "a"}); return err })
		step("", func() error { _, err = l.Decide(ctx, Request{Scope: "p", Cost: 2, ID: "a"}); return err }) // again
		step("p 0 -1 requests=-1,tokens=7;", func() error {
			_, err = l.Settle(ctx, d.Grant, policy.Costs{"requests": 1, "tokens": 7})
			return err
		})
		step("p -1 -1 requests=-1,tokens=-7;", func() error { return l.Refund(ctx, d.Grant) })
		step("p 1 1 tokens=500;", func() error {
			d, err = l.Wait(ctx, Request{Scope: "p", Costs: policy.Costs{"tokens": 500}})
			return err
		})
		step("p 0 0 tokens=-410;", func() error { _, err = l.Settle(ctx, d.Grant, policy.Costs{"tokens": 90}); return err })
		step("", func() error { _, err = l.Settle(ctx, d.Grant, policy.Costs{"tokens": 90}); return err })
		step("", func() error {
			if _, err := l.Settle(ctx, d.Grant, policy.Costs{"tokens": -1}); err == nil {
				l.t.Error("less than nothing was settled")
			}
			return nil
		})
		step("p -1 -1 tokens=-90;", func() error { return l.Refund(ctx, d.Grant) })
		step("p 1 1 ;", func() error { d, err = l.Start(ctx, Request{Scope: "p"}); return err })
		step("p 1 9 ;", func() error { _, _, err = l.AllowAtMost(ctx, "p", 20); return err })
		step("", func() error { _, err = l.Allow(ctx, "p"); return err }) // a denial
		for _, scope := range []string{"p", "q"} {                        // one that waits, and one that runs
			step("", func() error {
				d, err = l.Start(ctx, Request{Scope: scope, Waiter: Waiter{ID: "w"}})
				return err
			})
		}
		step("", func() error { return l.Refund(ctx, d.Grant) })
		step("free 1 1 ;", func() error { _, err = l.Allow(ctx, "free"); return err }) // under no rule
	})
}
