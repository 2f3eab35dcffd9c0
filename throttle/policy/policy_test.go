package policy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const levels = 8 // of a scope, at most

func mustScope(tb testing.TB, s string) policy.Scope {
	tb.Helper()
	scope, err := policy.ParseScope(s)
	must(tb, err)
	return scope
}

func mustParse(tb testing.TB, text string) *policy.Policy {
	tb.Helper()
	corpus.Add(tb, "limits", text)
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(tb, err)
	return p
}

func TestCheck(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
limits:
  a:
    rules:
      - {name: window, algorithm: sliding-window, limit: 200, per: 1s}
      - {name: places, algorithm: concurrency, limit: 2}
    scopes:
      b: {rules: [{name: bucket, algorithm: token-bucket, limit: 1000, per: 1s, burst: 50}]}
      one: {rules: [{name: bucket, algorithm: token-bucket, limit: 1000, per: 1s}]}
      off: {rules: [{name: bucket, algorithm: token-bucket, limit: 0, per: 1s, burst: 5}, {name: fixed, algorithm: fixed-window, limit: 0, per: 1s}]}
      same: {rules: [{name: fixed, algorithm: fixed-window, limit: 200, per: 1s}]}
`)
	for i, row := range []struct {
		scope string
		cost  int64
		want  string // the error's text; empty for none
	}{
		0:  {"a", 200, ""}, // a concurrency rule counts one place a run, whatever the cost
		1:  {"a", 201, `throttle: scope "a": cost 201 can never pass: rule "window" admits 200 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		2:  {"a/b", 50, ""},
		3:  {"a/b", 51, `throttle: scope "a/b": cost 51 can never pass: rule "bucket" admits 50 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		4:  {"a/b", 1 << 62, `throttle: scope "a/b": cost 4611686018427387904 can never pass: rule "bucket" admits 50 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		5:  {"a/one", 2, `throttle: scope "a/one": cost 2 can never pass: rule "bucket" admits 1 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		6:  {"a/off", 6, ""}, // limit 0 suspends: tasks wait
		7:  {"a/same", 201, `throttle: scope "a/same": cost 201 can never pass: rule "window" admits 200 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		8:  {"a", 0, `throttle: scope "a": cost is 0; the least is 1`},
		9:  {"a", -7, `throttle: scope "a": cost is -7; the least is 1`},
		10: {"b", 1, `throttle: scope "b" meets no rule and the policy denies such scopes; correct the scope, give it a rule, or write unmatched: allow`},
	} {
		err := p.Check(mustScope(t, row.scope), row.cost)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != row.want {
			t.Errorf("%d: got %q, want %q", i, got, row.want)
		}
	}
	var cost *policy.CostError
	if err := p.Check(mustScope(t, "a/b"), 51); !errors.As(err, &cost) ||
		*cost != (policy.CostError{Scope: mustScope(t, "a/b"), Rule: "bucket", Unit: policy.Requests, Cost: 51, Capacity: 50}) {
		t.Errorf("got %+v", cost)
	}
}

// "It keeps no part of limits", and what Match returns is the caller's.
func TestPolicyIsImmutable(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1}}
	below := map[string]policy.ScopeConfig{"b": {Rules: rules}}
	limits := map[string]policy.ScopeConfig{"a": {Rules: rules, Scopes: below}}
	p, err := policy.New(policy.UnmatchedDeny, limits)
	must(t, err)
	before := string(limitsyaml.Format(p))
	rules[0].Limit = 99
	below["b"] = policy.ScopeConfig{}
	below["*"] = policy.ScopeConfig{Rules: rules}
	delete(limits, "a")
	s := mustScope(t, "a/b")
	bounds, _ := p.Match(s)
	bounds[0].Rule.Limit = 77
	bounds, err = p.Match(s)
	if got := lines(bounds); err != nil || got != "r 1@a, r 1@a/b" {
		t.Errorf("got %s, %v", got, err)
	}
	if after := string(limitsyaml.Format(p)); after != before {
		t.Errorf("YAML changed to\n%s", after)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `limits: {"*": {rules: [{name: r, algorithm: concurrency, limit: 1}]}, payments: {scopes: {acme: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}}}`)
	for name, want := range map[string]bool{"payments": true, "acme": false, "*": false, "": false} {
		if got := p.Names(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
	if new(policy.Policy).Names("payments") {
		t.Error("the zero Policy names a provider")
	}
}

// "all rules of the policy, each with the pattern at which it stands"
func TestRules(t *testing.T) {
	t.Parallel()
	p, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  a:
    rules:
      - {name: x, algorithm: token-bucket, limit: 1, per: 1s}
      - {name: y, algorithm: concurrency, limit: 2}
    scopes:
      "*": {rules: [{name: x, algorithm: token-bucket, limit: 3, per: 1s}]}
      c: {scopes: {d: {rules: [{name: x, unlimited: true}]}}}
  "*": {rules: [{name: z, algorithm: token-bucket, limit: 4, per: 1s}]}
`))
	must(t, err)
	var got []string
	for pattern, r := range p.Rules() {
		got = append(got, fmt.Sprintf("%s:%s %d", pattern, r.Name, r.Limit))
	}
	x, y := slices.Index(got, "a:x 1"), slices.Index(got, "a:y 2")
	if slices.Sort(got); y != x+1 || !slices.Equal(got, []string{"*:z 4", "a/*:x 3", "a/c/d:x 0", "a:x 1", "a:y 2"}) {
		t.Errorf("got %q", got)
	}
	for n := range len(got) { // a loop may end early
		for range p.Rules() {
			if n--; n < 0 {
				break
			}
		}
	}
	for range new(policy.Policy).Rules() {
		t.Error("the zero Policy has a rule")
	}
}

// "Policies of the same limits have the same digest, in any process": it is of texts, not of pointers.
func TestDigest(t *testing.T) {
	t.Parallel()
	const text = `limits: {mail: {rules: [{name: daily, algorithm: calendar, limit: 5, resets: "@daily", active: "* 8 * * *"}]}}`
	p := mustParse(t, text)
	for limits, same := range map[string]bool{text: true, strings.Replace(text, "5", "6", 1): false, strings.Replace(text, "@daily", "@hourly", 1): false} {
		if got := mustParse(t, limits).Digest() == p.Digest(); got != same {
			t.Errorf("%s: %t", limits, got)
		}
	}
	if _, limits := p.Limits(); !strings.Contains(fmt.Sprintf("%+v", limits), "Resets:@daily in UTC Active:* 8 * * * in UTC") {
		t.Errorf("a digest would depend on pointers: %+v", limits)
	}
}
