package policy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

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
		"name twice":    {"", one(ok), `policy: limits.a.rules[1].name: name "ok" is taken by rules[0]; give each rule of a list its own`},
		"name not text": {"", one(policy.Rule{Name: "a\xff", Unlimited: true}), `policy: limits.a.rules[1].name: name is not UTF-8 (byte 0xff at offset 1); encode it, in hex for instance`},
		"algorithm":     {"", one(policy.Rule{Name: "r", Algorithm: "gcra", Limit: 1, Per: time.Second}), `policy: limits.a.rules[1].algorithm: algorithm is "gcra"; write token-bucket, sliding-window, fixed-window, concurrency or calendar`},
		"limit":         {"", one(policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: -1}), `policy: limits.a.rules[1].limit: limit is -1; the least is 0`},
		"no per":        {"", one(policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 1}), `policy: limits.a.rules[1]: per is missing; write the length of the window, such as 1s`},
		"per":           {"", one(policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 1, Per: 1500}), `policy: limits.a.rules[1].per: per is 1.5us, and limits count whole microseconds; write 1us or 2us`},
		"burst":         {"", one(policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Second, Burst: -1}), `policy: limits.a.rules[1].burst: burst is -1; the least is 1`},
		"slow bucket":   {"", one(policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: 366 * 24 * time.Hour, Burst: policy.MaxLimit}), `policy: limits.a.rules[1].burst: burst is 1000000000000, and burst x per / limit is longer than 142 years; lower burst or per, or raise limit`},
		"lease":         {"", one(policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Lease: 48 * time.Hour}), `policy: limits.a.rules[1].lease: lease is 2d; the most is 24h`},
		"company":       {"", one(policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Per: time.Second, Burst: 2}), "policy: limits.a.rules[1].per: per does not go with concurrency; remove it\npolicy: limits.a.rules[1].burst: burst does not go with concurrency; remove it"},
		"two zones": {"", one(policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1,
			Resets: wallclock.MustParse("0 0 * * *", "Asia/Kathmandu"), Active: wallclock.MustParseWindow("* 8 * * *", "")}),
			`policy: limits.a.rules[1].active: active is in time zone UTC, and resets in Asia/Kathmandu; a rule has one`},
		"no resets": {"", one(policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 1}),
			`policy: limits.a.rules[1]: resets is missing; write when a period begins, such as "0 0 * * *" or @monthly`},
		"unlimited":  {"", one(policy.Rule{Name: "r", Unlimited: true, Limit: 2}), `policy: limits.a.rules[1].limit: limit stands beside unlimited, which removes the rule; remove one of the two`},
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
