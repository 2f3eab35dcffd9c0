package throttle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// settled settles, and says what came back, was charged and is over, by rule.
func (b *bench) settled(g Grant, costs policy.Costs) string {
	b.t.Helper()
	s, err := b.Settle(ctx, g, costs)
	noError(b.t, err)
	var rules []string
	for _, r := range s.Rules {
		rules = append(rules, fmt.Sprintf("%s %d %d %d", r.Rule, r.Back, r.Debt, r.Over))
		if over := r.Over > 0; r.Spent != costs[r.Unit] || over && !s.Over() {
			b.t.Errorf("%+v of %v", r, costs)
		}
	}
	return strings.Join(rules, ", ")
}

func (b *bench) left() string {
	b.t.Helper()
	return leftOf(b.peek())
}

// "A refused call does not count against calendars and windows longer than an hour": once given back, and under no other rule;
// and everywhere with `counts`.
func TestSettleRefused(t *testing.T) {
	t.Parallel()
	day := wallclock.MustParse("0 0 * * *", "UTC")
	rules := []policy.Rule{
		{Name: "day", Algorithm: policy.Calendar, Limit: 10, Resets: day}, {Name: "month", Algorithm: policy.SlidingWindow, Limit: 10, Per: 720 * time.Hour},
		{Name: "hours", Algorithm: policy.FixedWindow, Limit: 10, Per: 2 * time.Hour}, {Name: "tokens", Algorithm: policy.FixedWindow, Limit: 10, Per: 24 * time.Hour, Unit: "tokens"},
		{Name: "hour", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Hour}, {Name: "bucket", Algorithm: policy.TokenBucket, Limit: 10, Per: 24 * time.Hour, Burst: 10},
	}
	for name, refusals := range map[string]policy.Refusals{"back": {}, "counts": {Count: true}} {
		p := limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules, Answers: policy.AnswersHeed, Refusals: refusals}})
		onBothIn(t, name, Config{}, p, func(b *bench) {
			costs := policy.Costs{policy.Requests: 1, "tokens": 3}
			d := b.decide(Request{Scope: "p", Costs: costs})
			for range 2 {
				_, err := b.SettleRefused(ctx, d.Grant)
				noError(b.t, err)
			}
			state, err := b.Peek(ctx, Request{Scope: "p", Costs: costs})
			noError(b.t, err)
			for rule, want := range map[string]int64{"day": 10, "month": 10, "hours": 10, "tokens": 10, "hour": 9, "bucket": 9} {
				if refusals.Count {
					want = map[bool]int64{true: 7, false: 9}[rule == "tokens"]
				}
				if r, _ := state.Rule("", rule); r.Remaining != want {
					b.t.Errorf("%s: %d left, want %d", rule, r.Remaining, want)
				}
			}
		})
	}
}

// A process that only settles learns the server's time from the replies: its own clock may be minutes behind, in another period of a
// calendar.
func TestSettleUnderAnotherClock(t *testing.T) {
	t.Parallel()
	p := policyOf(t, policy.Rule{Name: "minute", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("* * * * *", "UTC"), Unit: "tokens"})
	m, rdb := redistest.Miniredis(t)
	m.SetTime(time.Now().Add(5 * time.Minute))
	cfg := Config{Prefix: redistest.Prefix(t), Timeout: bound}
	asks, settles := newLimiter(t, rdb, p, cfg), newLimiter(t, rdb, p, cfg)
	d, err := asks.Decide(t.Context(), Request{Scope: "p", Costs: policy.Costs{"tokens": 3}})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	_, err = settles.Settle(t.Context(), d.Grant, policy.Costs{"tokens": 1})
	noError(t, err)
	if state, err := asks.Peek(t.Context(), Request{Scope: "p", Costs: policy.Costs{"tokens": 1}}); err != nil || state.Rules[0].Remaining != 9 {
		t.Errorf("%+v, %v", state, err)
	}
}
