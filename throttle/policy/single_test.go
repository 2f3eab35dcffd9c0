package policy

import (
	"strings"
	"testing"
	"time"
)

// "At most limit units in any second", minute or hour, of the provider and of all below it.
func TestPerSecond(t *testing.T) {
	t.Parallel()
	for per, p := range map[time.Duration]*Policy{
		time.Second: PerSecond("payments", 100), time.Minute: PerMinute("payments", 100), time.Hour: PerHour("payments", 100),
	} {
		for _, scope := range []string{"payments", "payments/acme/refunds"} {
			rules, err := p.Match(mustScope(t, scope))
			if err != nil || len(rules) != 1 {
				t.Fatalf("%s: %+v, %v", scope, rules, err)
			}
			want := Rule{Name: "limit", Algorithm: SlidingWindow, Limit: 100, Per: per}.withDefaults()
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
	for want, make := range map[string]func(){
		"limit is -1":   func() { PerSecond("payments", -1) },
		"name is empty": func() { PerMinute("", 1) },
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			}()
			make()
		}()
	}
}
