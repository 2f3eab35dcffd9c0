package policy_test

import (
	"math"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const shareLimits = `
limits:
  llm:
    rules:
      - {name: account, algorithm: concurrency, limit: 9}
    scopes:
      "*":
        weight: 2
        shares: {interactive: {part: 60%}, batch: {weight: 3}, "no": {part: 1%, weight: 2}}
        rules:
          - {name: own, algorithm: concurrency, limit: 3}
      acme:
        weight: 30
      globex:
        shares: {a: {weight: 4}, b: {part: 50%}}
  mail: {rules: [{name: r, algorithm: concurrency, limit: 1}]}
`

// limits.yaml: "a weight is of its name among those beside it, and shares are of the names
// below": those of a name replace those of "*", and both are written back.
func TestWeights(t *testing.T) {
	t.Parallel()
	p := mustParse(t, shareLimits)
	rest := .39 / 6
	for _, c := range []struct {
		scope string
		want  []float64 // under a rule of llm, and of the tenant
	}{
		{"llm", []float64{1, 1}},
		{"llm/initech", []float64{2, 1}},
		{"llm/acme", []float64{30, 1}},
		{"llm/acme/interactive", []float64{30, 3 * (.60 + rest)}},
		{"llm/acme/batch/deep", []float64{30, 3 * 3 * rest}},
		{"llm/acme/no", []float64{30, 3 * (.01 + 2*rest)}},
		{"llm/acme/other", []float64{30, 3 * (.01 + 2*rest)}},
		{"llm/globex/a", []float64{2, 2 * .5 * 4 / 5}},
		{"llm/globex/b", []float64{2, 2 * (.5 + .5/5)}},
		{"llm/globex/interactive", []float64{2, 2 * .5 * 4 / 5}},
		{"mail/x", []float64{1, 1}},
	} {
		for level, want := range c.want {
			if got := p.Weight(mustScope(t, c.scope), level+1); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s has %v below level %d, want %v", c.scope, got, level+1, want)
			}
		}
	}
	text := string(limitsyaml.Format(p))
	if again := mustParse(t, text); string(limitsyaml.Format(again)) != text || !strings.Contains(text, `    shares: {batch: {weight: 3}, interactive: {part: 60%}, "no": {part: 1%, weight: 2}}`) {
		t.Errorf("%s", text)
	}
	unmatched, limits := p.Limits()
	again, err := policy.New(unmatched, limits)
	if err != nil || string(limitsyaml.Format(again)) != text {
		t.Errorf("%v: %s", err, limitsyaml.Format(again))
	}
	limits["llm"].Scopes["*"].Shares["batch"] = policy.Share{Weight: 7}
	if string(limitsyaml.Format(p)) != text {
		t.Error("what a caller does to its tree changes the policy")
	}
}

func TestShareFaults(t *testing.T) {
	t.Parallel()
	deep := "limits: {a: " + strings.Repeat("{scopes: {a: ", 7) + "{shares: {x: {}}}" + strings.Repeat("}}", 7) + "}"
	for text, want := range map[string]string{
		"limits: {a: {weight: 0}}":                                          `x:1:22: limits.a.weight: weight is 0; it must be 1 to 1000`,
		"limits: {a: {weight: 1001}}":                                       `x:1:22: limits.a.weight: weight is 1001; it must be 1 to 1000`,
		"limits: {a: {weight: 2.5}}":                                        `x:1:22: limits.a.weight: weight is the number 2.5; write a whole number in plain digits, such as 100`,
		"limits: {a: {wieght: 2}}":                                          `x:1:14: limits.a.wieght: wieght is not a field of a scope; did you mean weight?`,
		"limits: {a: {shares: {}}}":                                         `x:1:22: limits.a.shares: shares is empty; name a scope below, or remove the line`,
		"limits: {a: {shares: [b]}}":                                        `x:1:22: limits.a.shares: shares is a list; write names under it, such as {interactive: {part: 60%}, batch: {weight: 3}}`,
		"limits: {a: {shares: {b: 60%}}}":                                   `x:1:26: limits.a.shares.b: b is the text "60%"; write its share, such as {part: 60%, weight: 1}`,
		"limits: {a: {shares: {b: {part: 60}}}}":                            `x:1:33: limits.a.shares.b.part: part is the number 60; write whole percents, such as 60%`,
		"limits: {a: {shares: {b: {part: 0%}}}}":                            `x:1:33: limits.a.shares.b.part: part is 0%; it must be 1% to 100%`,
		"limits: {a: {shares: {b: {part: 101%}}}}":                          `x:1:33: limits.a.shares.b.part: part is 101%; it must be 1% to 100%`,
		"limits: {a: {shares: {b: {weight: 0}}}}":                           `x:1:35: limits.a.shares.b.weight: weight is 0; it must be 1 to 1000`,
		"limits: {a: {shares: {b: {parts: 1%}}}}":                           `x:1:27: limits.a.shares.b.parts: parts is not a field of a share; did you mean part?`,
		`limits: {a: {shares: {"*": {part: 1%}}}}`:                          `x:1:23: limits.a.shares."*": name is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`,
		`limits: {a: {shares: {b/c: {part: 1%}}}}`:                          `x:1:23: limits.a.shares."b/c": name holds a '/', which divides names; write another character`,
		"limits: {a: {shares: {b: {part: 60%}, c: {part: 41%}}}}":           `x:1:23: limits.a.shares: the parts are 101% together; the most is 100%`,
		"limits: {a: {shares: {b: {part: 100%}, c: {}}}}":                   `x:1:40: limits.a.shares.c: the parts are 100% together, and "c" has none: leave it one, or use priorities of tasks`,
		"limits: {a: {shares: {b: {part: 60%}}, scopes: {b: {weight: 3}}}}": `x:1:61: limits.a.scopes.b.weight: weight of "b" is in shares of the scope above; keep one of the two`,
		deep: `x:1:114: limits.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.shares: shares stands at level 8, below which no scope has names; the most is 8`,
	} {
		if _, err := limitsyaml.Parse("x", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", text, err, want)
		}
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"a": {Weight: -1, Shares: map[string]policy.Share{"b": {Guaranteed: -3, Weight: 2000}}}})
	if err == nil || !strings.Contains(err.Error(), "weight is -1") || !strings.Contains(err.Error(), "part is -3%") || !strings.Contains(err.Error(), "weight is 2000") {
		t.Errorf("%v", err)
	}
}
