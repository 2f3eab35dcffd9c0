package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "At most limit units in any second", minute or hour, of the provider and of all below it.
func TestPerSecond(t *testing.T) {
	t.Parallel()
	for per, p := range map[time.Duration]*policy.Policy{
		time.Second: policy.PerSecond("payments", 100), time.Minute: policy.PerMinute("payments", 100), time.Hour: policy.PerHour("payments", 100),
	} {
		for _, scope := range []string{"payments", "payments/acme/refunds"} {
			rules, err := p.Match(mustScope(t, scope))
			if err != nil || len(rules) != 1 {
				t.Fatalf("%s: %+v, %v", scope, rules, err)
			}
			want := policy.Rule{Name: "limit", Algorithm: policy.SlidingWindow, Limit: 100, Per: per, OnRedisError: policy.FailClosed, Unit: policy.Requests}
			if rules[0].Rule != want || rules[0].Scope != mustScope(t, "payments") {
				t.Errorf("%s: %+v, want %+v", scope, rules[0], want)
			}
		}
		if _, err := p.Match(mustScope(t, "other")); err == nil {
			t.Error("another provider meets no rule, and was not denied")
		}
	}
}

// "It panics where the provider is no name, or the limit is not 0 to MaxLimit": with what is wrong.
func TestPerSecondPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "limit is -1") {
			t.Errorf("%q", got)
		}
	}()
	policy.PerSecond("payments", -1)
}
