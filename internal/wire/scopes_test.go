package wire

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// A tier that changes while its scopes are compiled counts for all that is compiled after, whenever the change comes: for the rules of the
// path, and for those of the members of its pool.
func TestForgetWhileCompiling(t *testing.T) {
	t.Parallel()
	with := func(limit int64) policy.ScopeConfig {
		rules := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour}}
		return policy.ScopeConfig{Rules: rules, Pool: policy.Pool{Members: []policy.Member{{Name: "key"}}}, Scopes: map[string]policy.ScopeConfig{"@key": {Rules: rules}}}
	}
	p, err := policy.New("", map[string]policy.ScopeConfig{"p": {Tiers: map[string]policy.ScopeConfig{"gold": with(1000), "free": with(1)}}})
	if err != nil {
		t.Fatal(err)
	}
	for change := 1; ; change++ { // at the first time that the compiler asks, and so on
		var s *Scopes
		asked := 0
		tiered := p.WithTiers(func(name policy.Scope) string {
			if asked++; asked < change {
				return "free"
			} else if asked == change {
				s.Forget(name)
				return "free" // it was read just before
			}
			return "gold"
		})
		s = NewScopes(tiered, Compiler{Base: "hw"}, func(string) time.Time { return time.Unix(1e9, 0) }, func(*Scope, *policy.Policy) any { return nil })
		if _, err := s.Of("p/acme"); err != nil {
			t.Fatal(err)
		}
		if asked < change {
			return
		}
		then, err := s.Of("p/acme")
		if err != nil {
			t.Fatal(err)
		}
		if path, member := then.Rules[0].Rule.Limit, then.Pool.Members[0].Rules[0].Rule.Limit; path != 1000 || member != 1000 {
			t.Errorf("changed at question %d: %d on the path, and %d of the member", change, path, member)
		}
	}
}
