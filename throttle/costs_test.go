package throttle

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// twoUnits is what an API allows that counts requests, tokens and runs.
var twoUnits = []policy.Rule{
	{Name: "requests", Algorithm: policy.SlidingWindow, Limit: 3, Per: sec},
	{Name: "tokens", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000, Unit: "tokens"},
	{Name: "daily", Algorithm: policy.Calendar, Limit: 5000, Resets: wallclock.MustParse("@daily", "UTC"), Unit: "tokens"},
	{Name: "parallel", Algorithm: policy.Concurrency, Limit: 2},
}

// "Requests default to 1, and other units to 0", and what no wait admits is an error. What each rule takes of a cost by unit, all
// of them or none, is the model's: TestDecisionsAreAsThePagesSay.
func TestCostsCountByUnit(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, twoUnits...), func(b *bench) {
		for want, req := range map[string]Request{
			"requests 2, tokens 400, daily 4400, parallel 1": {Costs: policy.Costs{"tokens": 600}},
			"tokens 400, daily 4400, parallel 1":             {Costs: policy.Costs{"requests": 0, "tokens": 600}},
			"requests 2, parallel 1":                         {Costs: policy.Costs{"images": 7}},
			"requests 0, tokens 997, daily 4997, parallel 1": {Cost: 3},
		} {
			b.pass(sec) // a bucket gets less back
			req.Scope = "p/x"
			d := b.decide(req)
			if b.giveBack(d.Grant); leftOf(d) != want {
				b.t.Errorf("%+v: got %s, want %s", req, leftOf(d), want)
			}
		}
		for _, costs := range []policy.Costs{{"tokens": 1001}, {"tokens": -1}, {"requests": 0, "": 0}, {"requests": 0, "tokens": -1}} {
			if d, err := b.Decide(ctx, Request{Scope: "p/x", Costs: costs}); err == nil {
				b.t.Errorf("%v: %+v", costs, d)
			}
		}
	})
}

func leftOf(d Decision) string {
	var rules []string
	for _, r := range d.Rules {
		rules = append(rules, fmt.Sprintf("%s %d", r.Rule, r.Remaining))
	}
	return strings.Join(rules, ", ")
}

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
