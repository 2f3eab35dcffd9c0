package throttle

import (
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// "by its level and name in limits.yaml"; "for an empty level it is the innermost rule of that name";
// "ok is false if the decision has no such rule".
func TestDecisionRule(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, parsedPolicy(t, `
limits: {p: {
  rules: [
    {name: pace, algorithm: sliding-window, limit: 100, per: 1s}, {name: tokens, algorithm: sliding-window, limit: 1000, per: 1s, unit: tokens}],
  scopes: {
    "*": {rules: [{name: pace, algorithm: sliding-window, limit: 20, per: 1s}, {name: parallel, algorithm: concurrency, limit: 3}]},
    acme: {rules: [{name: pace, algorithm: sliding-window, limit: 50, per: 1s}]}}}}
`), func(b *bench) {
		for _, row := range []struct {
			scope, level, name string
			remaining          int64 // -1 for none
		}{
			{"p/x", "p", "pace", 99},
			{"p/x", "p/x", "pace", 19},
			{"p/x", "p/*", "pace", 19},
			{"p/x", "", "pace", 19},
			{"p/x", "", "parallel", 2},
			{"p/x", "", "tokens", -1},     // costs nothing
			{"p/acme", "p/*", "pace", -1}, // acme's own lies over it
		} {
			d := b.decide(Request{Scope: row.scope, Costs: policy.Costs{policy.Requests: 1}})
			r, ok := d.Rule(row.level, row.name)
			if ok != (row.remaining >= 0) || ok && (r.Rule != row.name || r.Remaining != row.remaining) || r.RuleInfo == nil {
				b.t.Errorf("rule %q of %q in %s: %+v %t, want %d left", row.name, row.level, row.scope, r, ok, row.remaining)
			}
			b.giveBack(d.Grant)
		}
		if r, ok := (Decision{}).Rule("", "pace"); ok || r.Limit != 0 {
			b.t.Errorf("no rules: %+v %t", r, ok)
		}
	})
}
