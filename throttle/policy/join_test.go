package policy_test

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// docs/scopes.md: "Each name is one level, whatever it holds, and two names never become the same."
func TestJoinScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é/", 100)
	for want, names := range map[string][]string{
		"payments/acme": {"payments", "acme"}, "vendor/acme%2Frefunds": {"vendor", "acme/refunds"}, "vendor/50%25": {"vendor", "50%"},
		"vendor/%2A": {"vendor", "*"}, "vendor/a*": {"vendor", "a*"}, "vendor/a%0Ab%FF é": {"vendor", "a\nb\xff é"}, "vendor/%E2%80%A8": {"vendor", "\u2028"}, "": {"vendor", "", "x"},
	} {
		if got := policy.JoinScope(names...); got != want {
			t.Errorf("%q is %q, want %q", names, got, want)
		}
	}
	seen := map[string]string{}
	for _, name := range []string{"a", "a/b", "a%2Fb", "*", "%2A", "%", "%25", "a\xff", "a%FF", long, long + "x", long[:len(long)-1], strings.Repeat("x", 128), strings.Repeat("x", 129), "\x00", "\ufeff", "\ufffd"} {
		joined := policy.JoinScope("p", name)
		if s, err := policy.ParseScope(joined); err != nil || s.Len() != 2 || seen[joined] != "" {
			t.Errorf("%q is %q, as %q: %v", name, joined, seen[joined], err)
		}
		seen[joined] = name
	}
}
