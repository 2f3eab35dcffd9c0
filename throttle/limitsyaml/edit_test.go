package limitsyaml

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

func TestParseRule(t *testing.T) {
	t.Parallel()
	want := policy.Rule{Name: "a b", Algorithm: policy.TokenBucket, Limit: 20, Per: time.Second, Burst: 1, OnRedisError: policy.FailClosed, Unit: policy.Requests}
	got, err := ParseRule("it", []byte(FormatRule(want)))
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for text, wantErr := range map[string]string{
		"":                                 "it:1:1: the file is empty; write limits: {} if no rules are meant",
		"7":                                "it:1:1: the rule is the number 7; write its fields, such as {name: account, ...}",
		"{name: a}":                        "it:1:1: algorithm is missing; write token-bucket, sliding-window, fixed-window, concurrency or calendar\nit:1:1: limit is missing; write a whole number, or unlimited: true to remove an inherited rule",
		"{name: a, unlimited: true, x: 1}": "it:1:28: x is not a field of a rule; write name, algorithm, limit, per, opens_on_use, burst, lease, on_redis_error, margin, max_wait, resets, active, timezone, rollover, spread, shadow, unit, cap, vendor or unlimited",
	} {
		if _, err := ParseRule("it", []byte(text)); err == nil || err.Error() != wantErr {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, wantErr)
		}
	}
}

func TestRuleWith(t *testing.T) {
	t.Parallel()
	bucket := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 20, Per: time.Second, Burst: 5, OnRedisError: policy.FailClosed}
	for what, c := range map[string]struct {
		from   policy.Rule
		fields map[string]string
		want   string
	}{
		"one field":                 {bucket, map[string]string{"limit": "100"}, "{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}"},
		"several":                   {bucket, map[string]string{"per": "1m", "burst": "9", "margin": "1s"}, "{name: r, algorithm: token-bucket, limit: 20, per: 1m, burst: 9, margin: 1s}"},
		"a field taken":             {bucket, map[string]string{"burst": "", "lease": ""}, "{name: r, algorithm: token-bucket, limit: 20, per: 1s}"},
		"another kind":              {bucket, map[string]string{"algorithm": "sliding-window", "burst": ""}, "{name: r, algorithm: sliding-window, limit: 20, per: 1s}"},
		"lifted":                    {bucket, map[string]string{"unlimited": "true"}, "{name: r, unlimited: true}"},
		"not lifted":                {policy.Rule{Name: "r", Unlimited: true}, map[string]string{"algorithm": "concurrency", "limit": "3"}, "{name: r, algorithm: concurrency, limit: 3}"},
		"new":                       {policy.Rule{Name: "r"}, map[string]string{"algorithm": "concurrency", "limit": "0"}, "{name: r, algorithm: concurrency, limit: 0}"},
		"nothing":                   {bucket, nil, FormatRule(bucket)},
		"a kind that is in the way": {bucket, map[string]string{"algorithm": "fixed-window"}, "the rule: burst does not go with fixed-window; remove it"},
		"no number":                 {bucket, map[string]string{"limit": "many"}, `the rule: limit is the text "many"; write a whole number in plain digits, such as 100`},
		"no duration":               {bucket, map[string]string{"per": "5"}, "the rule: per is the number 5, which has no unit; write 5s if seconds are meant"},
		"no field":                  {bucket, map[string]string{"limits": "5"}, "the rule: limits is not a field of a rule; did you mean limit?"},
		"no YAML":                   {bucket, map[string]string{"per": "*x"}, `the rule: per is the text "*x"; write a duration, such as 500ms, 1m, 24h or 30d`},
	} {
		got, err := RuleWith(c.from, c.fields)
		said := FormatRule(got)
		if err != nil {
			said = err.Error()
		}
		if said != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", what, said, c.want)
		}
	}
}

func mustParse(tb testing.TB, text string) *policy.Policy {
	tb.Helper()
	p, err := Parse("limits.yaml", []byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}
