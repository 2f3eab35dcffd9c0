package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// The same checks hold for trees made in Go; their faults have no line.
func TestNewFaults(t *testing.T) {
	t.Parallel()
	ok := policy.Rule{Name: "ok", Algorithm: policy.Concurrency, Limit: 1}
	one := func(r policy.Rule) map[string]policy.ScopeConfig {
		return map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{ok, r}}}
	}
	itself := map[string]policy.ScopeConfig{}
	itself["n"] = policy.ScopeConfig{Rules: []policy.Rule{ok}, Scopes: itself}
	for name, row := range map[string]struct {
		unmatched policy.Unmatched
		limits    map[string]policy.ScopeConfig
		want      string
	}{
		"unmatched": {"Deny", nil, `policy: unmatched: unmatched is "Deny"; did you mean deny?`},
		"zero rule": {"", one(policy.Rule{}), "policy: limits.a.rules[1]: name is missing; every rule needs one, such as account\n" +
			"policy: limits.a.rules[1]: algorithm is missing; write token-bucket, sliding-window, fixed-window, concurrency or calendar"},
		"name not text":  {"", one(policy.Rule{Name: "a\xff", Unlimited: true}), `policy: limits.a.rules[1].name: name is not UTF-8 (byte 0xff at offset 1); encode it, in hex for instance`},
		"a field's name": {"", one(policy.Rule{Name: "owner:", Unlimited: true}), `policy: limits.a.rules[1].name: name "owner:" ends in a colon, as only the fields of a scope do; leave the colon out`},
		"per":            {"", one(policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 1, Per: 1500}), `policy: limits.a.rules[1].per: per is 1.5us, and limits count whole microseconds; write 1us or 2us`},
		"two zones": {"", one(policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1,
			Resets: wallclock.MustParse("0 0 * * *", "Asia/Kathmandu"), Active: wallclock.MustParseWindow("* 8 * * *", "")}),
			`policy: limits.a.rules[1].active: active is in time zone UTC, and resets in Asia/Kathmandu; a rule has one`},
		"no resets": {"", one(policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1}),
			`policy: limits.a.rules[1]: resets is missing; write when a period begins, such as "0 0 * * *" or @monthly`},
		"scope name": {"", map[string]policy.ScopeConfig{"a": {Scopes: map[string]policy.ScopeConfig{"b/c": {}}}}, `policy: limits.a.scopes."b/c": name holds a '/', which divides names; write another character`},
		"two scopes": {"", map[string]policy.ScopeConfig{"": {}, "\xff": {}}, "policy: limits.\"\": name is empty; write 1 to 128 bytes\npolicy: limits.\"\\xff\": name is not UTF-8 (byte 0xff at offset 0); encode it, in hex for instance"},
		"a ring":     {"", itself, `policy: limits.n.scopes.n.scopes.n.scopes.n.scopes.n.scopes.n.scopes.n.scopes.n.scopes.n: n is at level 9; the most is 8`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := policy.New(row.unmatched, row.limits)
			if p != nil || err == nil || err.Error() != row.want {
				t.Errorf("got %v, %v, want\n%s", p, err, row.want)
			}
			var fault *policy.Error
			if errors.As(err, &fault) && (fault.Faults[0].Line != 0 || fault.Faults[0].Column != 0) {
				t.Errorf("a line out of nowhere: %+v", fault.Faults[0])
			}
		})
	}
}

// checkFaults compares all that is wrong with a text, as Error prints it.
func checkFaults(t *testing.T, text, want string) {
	t.Helper()
	corpus.Add(t, "limits", text)
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	var fault *policy.Error
	if !errors.As(err, &fault) || p != nil {
		t.Fatalf("got %v, %v, want a *Error", p, err)
	}
	want = "limits.yaml:" + strings.ReplaceAll(want, "\n", "\nlimits.yaml:")
	if got := err.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s\nin\n%s", got, want, text)
	}
}
