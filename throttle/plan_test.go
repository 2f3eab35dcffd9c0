package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

const partlyPlain = `
unmatched: allow
limits:
  plain: {rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 10}, {name: c, algorithm: concurrency, limit: 3}]}
  hours: {rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1s}, {name: h, algorithm: sliding-window, limit: 9, per: 1s, active: "* 8-19 * * *"}]}
  calendar: {rules: [{name: r, algorithm: calendar, limit: 100, resets: "0 0 * * *"}]}
  paused: {paused: true}
  until: {paused: true, paused_until: 2100-01-01T00:00:00Z}
  prefetch: {rules: [{name: r, algorithm: sliding-window, limit: 100, per: 10s, prefetch: 50ms}]}
  shadow: {rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1s}, {name: s, algorithm: sliding-window, limit: 9, per: 1s, shadow: true}]}
  shadows: {rules: [{name: s, algorithm: sliding-window, limit: 9, per: 1s, shadow: true}]}
  closed: {rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1s, unit: tokens}, {name: h, algorithm: sliding-window, limit: 9, per: 1s, active: "* 8-19 * * *"}]}
`

// A scope is plain where nothing but its rules decides, and never otherwise: also where only what is left out of it
// for a request's costs has hours.
func TestPlainScopes(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Miniredis(t)
	b := newBench(t, rdb, Config{}, parsedPolicy(t, partlyPlain))
	for scope, want := range map[string]bool{
		"plain": true, "plain/below": true, "hours": false, "calendar": false, "paused": false, "until": false, "prefetch": false,
		"shadow": false, "shadows": false, "none": false,
	} {
		p, err := b.scopes.of(scope)
		if err != nil || p.plain() != want {
			t.Errorf("%s: plain %t, %v", scope, p.plain(), err)
		}
		if p.opened("hw").plain() {
			t.Errorf("%s is plain when nothing holds in it", scope)
		}
	}
	p, err := b.scopes.of("closed")
	if err != nil {
		t.Fatal(err)
	}
	part := b.scopes.counted(p, policy.Costs{policy.Requests: 0, "tokens": 3})
	if len(part.bounds) != 1 || part.bounds[0].Rule.Name != "r" || part.plain() {
		t.Errorf("%d rules, plain %t", len(part.bounds), part.plain())
	}
}

// What one granted Allow passes is the difference between the two: test/project counts it by their coverage, and holds the
// reader's tour against it.
func TestTourOfAllow(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]int{"3 calls": 3, "4 calls": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rdb := redistest.Miniredis(t)
			l, err := New(rdb, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: time.Hour, Burst: 10}), Config{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range calls {
				if d, err := l.Allow(t.Context(), "p"); err != nil || !d.Allowed || d.Rules[0].Remaining != int64(9-i) {
					t.Fatalf("%d: %+v, %v", i, d, err)
				}
			}
		})
	}
}
