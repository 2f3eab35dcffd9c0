package throttle

import (
	"context"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
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
			for verb, ask := range map[string]func(context.Context, Request) (Decision, error){
				"Decide": b.Decide, "Peek": b.Peek, "Start": b.Start, "Wait": b.Wait,
			} {
				d, err := ask(ctx, Request{Scope: "p/x", Costs: free})
				limited := ""
				for _, r := range d.Rules {
					if r.Limited {
						limited = r.Rule
					}
				}
				if err != nil || !d.Allowed || d.RetryAfter != 0 || d.Wait != 0 || !d.Grant.Zero() || leftOf(d) != row.want || limited != row.limited {
					b.t.Errorf("%s: %+v, %v: %s are left, want %s; %q would make one unit wait, want %q", verb, d, err, leftOf(d), row.want, limited, row.limited)
				}
			}
		})
	}
}
