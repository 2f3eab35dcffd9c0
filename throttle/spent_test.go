package throttle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// spentTold keeps what Config.OnSpent is told.
type spentTold struct{ list []string }

func (s *spentTold) add(one Spent) {
	s.list = append(s.list, fmt.Sprintf("%s %d %d %s;", one.Scope, one.Tasks, one.Units, one.Costs))
}

// since says what was told since the last call.
func (s *spentTold) since() string {
	text := strings.Join(s.list, "")
	s.list = nil
	return text
}

// OnSpent "receives each grant that takes anything, each refund, and each correction by Settle. It does not receive requests with a waiter id".
func TestOnSpent(t *testing.T) {
	t.Parallel()
	told := map[string]*spentTold{"redis": {}, "miniredis": {}}
	for name, sums := range told {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			if name == "miniredis" {
				_, rdb = redistest.Miniredis(t)
			}
			calls := policy.Rule{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Hour}
			rules, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"q": {Rules: []policy.Rule{calls}}, "p": {
				Rules: []policy.Rule{calls, {Name: "tokens", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Hour, Unit: "tokens"}},
			}})
			noError(t, err)
			l := newLimiter(t, rdb, rules, Config{Prefix: redistest.Prefix(t), OnSpent: sums.add})
			var d Decision
			step := func(want string, do func() (err error)) {
				t.Helper()
				noError(t, do())
				if got := sums.since(); got != want {
					t.Errorf("got %q, want %q", got, want)
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
			if _, err = l.Settle(ctx, d.Grant, policy.Costs{"tokens": -1}); err == nil || sums.since() != "" {
				t.Error("less than nothing was settled")
			}
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
}
