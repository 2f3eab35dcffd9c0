package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// WaitingScope reads what a waiting task's last error says of its scope, whatever the scope's names are.
func TestWaitingScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 128) + strings.Repeat("/"+strings.Repeat("b", 128), 7)
	for _, scope := range []string{long, "p", "p/a", "p, rule x/b", "scope/a", "p is paused", `scope "x`, "p/é\"<", "x/:"} {
		parsed, err := policy.ParseScope(scope)
		must(t, err)
		for why, limited := range map[string]*Limited{
			"rule":      newLimited(&job{scope: scope}, "r", time.Now()),
			"pause":     newLimited(&job{scope: scope}, policy.PausedRule, time.Now()),
			"unmatched": newLimited(&job{scope: scope, why: strings.TrimPrefix((&policy.UnmatchedError{Scope: parsed}).Error(), "throttle: ")}, "", time.Now()),
			"cost":      newLimited(&job{scope: scope, why: strings.TrimPrefix((&policy.CostError{Scope: parsed, Rule: "r", Cost: 9}).Error(), "throttle: ")}, "", time.Now()),
		} {
			if got, is := WaitingScope(limited.Error()); !is || got != scope {
				t.Errorf("%s: of %q it reads %q, %t", why, limited.Error(), got, is)
			}
		}
	}
	for _, text := range []string{"", "boom", errors.ErrUnsupported.Error(), "headway: waiting", "headway: waiting: a//b"} {
		if got, is := WaitingScope(text); is {
			t.Errorf("of %q it reads %q", text, got)
		}
	}
}
