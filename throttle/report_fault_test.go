package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// A correction is one of the rule as it was: when the policy changes the rule, it counts as the policy has it.
func TestChangedRuleIsNotCorrected(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []policy.Algorithm{policy.SlidingWindow, policy.FixedWindow, policy.TokenBucket} {
		for _, margin := range []time.Duration{0, sec} {
			rule := policy.Rule{Name: "r", Algorithm: algorithm, Limit: 50, Per: time.Minute, Margin: margin}
			admits := 46
			if algorithm == policy.TokenBucket {
				rule.Burst, rule.Margin, admits = 50, 0, 45
			}
			onBothIn(t, string(algorithm)+margin.String(), Config{}, policyOf(t, rule), func(b *bench) {
				b.hear("p", owns(4, time.Minute))
				b.admits("the API has 4", "p", 60, 4)
				other := rule // both servers' tests run at once
				if other.Per = time.Hour; algorithm == policy.TokenBucket {
					other.Per = 75 * sec
				}
				b.SetPolicy(policyOf(b.t, other))
				b.admits("under the other rule", "p", 60, admits)
				b.wantCounts("under the other rule", "p", "r", 50, 50)
			})
		}
	}
}

// A pause by hand beside a shorter one that an API asks for: that by hand binds. A request of nothing is allowed "unless its scope is
// paused", by hand or by its API, whatever else is over.
func TestRetryAfterBothPauses(t *testing.T) {
	t.Parallel()
	off := policy.Rule{Name: "off", Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}
	for name, test := range map[string]struct {
		hand, told, want time.Duration // by hand: 0 for no pause, and Never for one without an end
		costs            policy.Costs
		rules            []policy.Rule
	}{
		"that by hand is longer":             {time.Minute, 10 * sec, time.Minute, nil, []policy.Rule{window10()}},
		"that by hand has no end":            {Never, 10 * sec, Never, nil, []policy.Rule{window10()}},
		"no API, and no rule besides":        {10 * sec, 0, 10 * sec, nil, nil},
		"of nothing, by hand":                {2 * sec, 0, 2 * sec, free, []policy.Rule{window10()}},
		"of nothing, by its API":             {0, sec, sec, free, []policy.Rule{window10()}},
		"of nothing, by its API, and is off": {0, sec, sec, free, []policy.Rule{off}},
	} {
		config := policy.ScopeConfig{Rules: test.rules}
		if test.hand > 0 {
			config.Pause = policy.PauseOn
		}
		if test.hand > 0 && test.hand < Never {
			config.PausedUntil = time.UnixMicro(epoch).Add(test.hand)
		}
		onBothIn(t, name, Config{}, limitsOf(t, map[string]policy.ScopeConfig{"p": config}), func(b *bench) {
			if test.told > 0 {
				b.hear("p", turnedDown(test.told))
			}
			req, byAPI := Request{Scope: "p", Costs: test.costs}, test.hand == 0
			if d := b.decide(req); d.Allowed || d.RetryAfter != test.want || d.Paused != byAPI || d.Binding < 0 != byAPI {
				b.t.Errorf("%+v", d)
			}
			if d, err := b.Peek(ctx, req); err != nil || d.Allowed || d.RetryAfter != test.want || d.Paused != byAPI {
				b.t.Errorf("a peek says %+v, %v", d, err)
			}
			if b.pass(test.want); test.costs != nil && !b.decide(req).Allowed {
				b.t.Error("it is denied when the pause is over")
			}
		})
	}
}

// "At most 20,000": beyond that the pause of a path counts for the tenant above it, and a correction is left out. What is over makes
// room with the calls that come.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 20, Per: time.Minute}
	b := newBench(t, redistest.Client(t), Config{}, tenants(t, []policy.Rule{bucket(1000, 1000)}, []policy.Rule{rule}))
	b.hear("p/b/x", turnedDown(time.Minute))
	key := wire.APIKey(b.plan("p").Prefix)
	full := map[string]any{}
	for field, v := range b.rdb.HGetAll(ctx, key).Val() {
		for i := 0; field[0] == 'P' && i < 20_000; i++ {
			full[fmt.Sprint("P/c/", i)] = v
		}
	}
	noError(t, b.rdb.HSet(ctx, key, full).Err())
	b.hear("p/a/x", turnedDown(time.Hour))
	for scope, starts := range map[string]bool{"p/a/x": false, "p/a/y": false, "p/b/x": false, "p/b": true, "p": true} {
		if d := b.decide(Request{Scope: scope}); d.Allowed != starts {
			t.Errorf("%s starts: %t", scope, d.Allowed)
		}
	}
	if b.hear("p/b", owns(4, time.Minute)).Changed {
		t.Error("there was room for a correction")
	}
	b.pass(3 * time.Minute)
	for i := range 1000 {
		b.hear(fmt.Sprint("p/d", i), turnedDown(sec))
		b.pass(3 * time.Second)
	}
	if n := b.rdb.HLen(ctx, key).Val(); n > 1000 {
		t.Errorf("%d are kept of what is over", n)
	}
}
