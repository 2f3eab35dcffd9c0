package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

var free = policy.Costs{policy.Requests: 0, "tokens": 0}

// "nothing is taken, no place either, and no limit applies"; "Remaining and ResetAfter as they are, Limited and
// RetryAfter as for one unit"; "Costs one round trip".
func TestCostsOfNothing(t *testing.T) {
	t.Parallel()
	rules := append([]policy.Rule{{Name: "off", Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}}, twoUnits...)
	for name, row := range map[string]struct {
		rules   []policy.Rule
		before  []Request
		want    string // what is left of each rule
		limited string // the last of them that one unit would wait for
	}{
		"nothing is spent": {twoUnits, nil, "requests 3, tokens 1000, daily 5000, parallel 2", ""},
		"some is spent":    {twoUnits, []Request{{Costs: policy.Costs{"tokens": 900}}}, "requests 2, tokens 100, daily 4100, parallel 1", ""},
		"requests are over": {
			twoUnits, []Request{{Costs: policy.Costs{"requests": 3}}}, "requests 0, tokens 1000, daily 5000, parallel 1", "requests",
		},
		"tokens are over": {twoUnits, []Request{{Costs: policy.Costs{"tokens": 1000}}}, "requests 2, tokens 0, daily 4000, parallel 1", "tokens"},
		"places are over": {twoUnits, []Request{{}, {}}, "requests 1, tokens 998, daily 4998, parallel 0", "parallel"},
		"suspended":       {rules, nil, "off 0, requests 3, tokens 1000, daily 5000, parallel 2", "off"},
		"by one rule":     {[]policy.Rule{window10()}, []Request{{Cost: 10}}, "r 0", "r"},
	} {
		onBothIn(t, name, Config{Unbatched: true}, policyOf(t, row.rules...), func(b *bench) {
			for _, req := range row.before {
				req.Scope = "p/x"
				b.decide(req)
			}
			b.decide(Request{Scope: "p/x", Costs: free}) // which loads the scripts
			calls := counting(b.rdb, runsScript)
			if b.decide(Request{Scope: "p/x", Costs: free}); calls.Load() != 1 {
				b.t.Errorf("it took %d calls, want one", calls.Load())
			}
			for verb, ask := range map[string]func() (Decision, error){
				"Decide": func() (Decision, error) { return b.Decide(ctx, Request{Scope: "p/x", Costs: free}) },
				"Peek":   func() (Decision, error) { return b.Peek(ctx, Request{Scope: "p/x", Costs: free}) },
				"Start":  func() (Decision, error) { return b.Start(ctx, Request{Scope: "p/x", Costs: free}) },
				"Wait":   func() (Decision, error) { return b.Wait(ctx, Request{Scope: "p/x", Costs: free}) },
			} {
				d, err := ask()
				if err != nil || !d.Allowed || d.RetryAfter != 0 || d.Wait != 0 || !d.Grant.Zero() || leftOf(d) != row.want {
					b.t.Errorf("%s: %+v, %v: %s are left, want %s", verb, d, err, leftOf(d), row.want)
				}
				limited := ""
				for _, r := range d.Rules {
					if r.Limited {
						limited = r.Rule
					}
				}
				if limited != row.limited {
					b.t.Errorf("%s: %q would make one unit wait, want %q", verb, limited, row.limited)
				}
			}
		})
	}
}

// "unless its scope is paused": by hand, for so long or for good, or by its API; whatever else is over.
func TestCostsOfNothingWhilePaused(t *testing.T) {
	t.Parallel()
	until := time.UnixMicro(epoch).Add(2 * sec)
	for name, row := range map[string]struct {
		scope policy.ScopeConfig
		api   bool
		retry time.Duration
	}{
		"by hand":    {policy.ScopeConfig{Pause: policy.PauseOn, PausedUntil: until, Rules: []policy.Rule{window10()}}, false, 2 * sec},
		"by its API": {policy.ScopeConfig{Rules: []policy.Rule{window10()}}, true, sec},
		"by its API, and suspended": {
			policy.ScopeConfig{Rules: []policy.Rule{{Name: "off", Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}}}, true, sec,
		},
	} {
		pol := limitsOf(t, map[string]policy.ScopeConfig{"p": row.scope})
		onBothIn(t, name, Config{}, pol, func(b *bench) {
			if row.scope.Pause != policy.PauseOn {
				b.decide(Request{Scope: "p", Costs: policy.Costs{"others": 1}}) // takes a place
			}
			if row.api {
				b.hear("p", upstream.Hint{Limited: true, Retry: sec, RetryKnown: true})
			}
			d := b.decide(Request{Scope: "p", Costs: free})
			if d.Allowed || d.RetryAfter != row.retry || d.Paused != (row.scope.Pause != policy.PauseOn) {
				b.t.Errorf("%+v", d)
			}
			b.pass(row.retry)
			if d := b.decide(Request{Scope: "p", Costs: free}); !d.Allowed {
				b.t.Errorf("when it is over: %+v", d)
			}
		})
	}
}
