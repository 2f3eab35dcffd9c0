package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/limits.md: "The lowest cap on a scope's path counts", and "a name's own cap replaces that of "*"
// at the same level". Both are written back, and 0 is a cap of its own.
func TestMaxPriorityOfAPath(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
unmatched: allow
limits:
  "*": {max_priority: 1000000}
  llm:
    max_priority: 9
    rules: [{name: account, algorithm: concurrency, limit: 9}]
    scopes:
      "*":
        max_priority: 0
        scopes:
          batch: {max_priority: -1000000}
          urgent: {max_priority: 5}
      acme: {max_priority: 7}
      globex: {max_priority: 10, scopes: {batch: {max_priority: 8}}}
      initech: {weight: 3}
  mail: {}
`)
	for scope, want := range map[string]int{
		"llm": 9, "other": 1000000, "mail/x": 1000000,
		"llm/x": 0, "llm/x/y": 0, "llm/x/batch": -1000000, "llm/x/urgent": 0, "llm/initech": 0,
		"llm/acme": 7, "llm/acme/urgent": 5, "llm/acme/batch/deep": -1000000,
		"llm/globex": 9, "llm/globex/batch": 8,
	} {
		if got, limited := p.MaxPriority(mustScope(t, scope)); got != want || !limited {
			t.Errorf("%s: %d, %t, want %d", scope, got, limited, want)
		}
	}
	if got, limited := mustParse(t, "limits: {p: {scopes: {a: {max_priority: 1}}}}").MaxPriority(mustScope(t, "p/b")); limited {
		t.Errorf("a cap of %d out of nowhere", got)
	}
	if again := mustParse(t, string(limitsyaml.Format(p))); !reflect.DeepEqual(again, p) {
		t.Errorf("reads back differently:\n%s\n%s", limitsyaml.Format(p), limitsyaml.Format(again))
	}
	unmatched, limits := p.Limits()
	again, err := policy.New(unmatched, limits)
	if err != nil || string(limitsyaml.Format(again)) != string(limitsyaml.Format(p)) {
		t.Errorf("%v\n%s", err, limitsyaml.Format(again))
	}
	*limits["llm"].MaxPriority = 100
	for _, p := range []*policy.Policy{p, again} {
		if got, _ := p.MaxPriority(mustScope(t, "llm")); got != 9 {
			t.Errorf("a caller's change of its tree changed the policy to %d", got)
		}
	}
	if node := mustParse(t, "limits: {p: {max_priority: 0}}"); !strings.Contains(string(limitsyaml.Format(node)), "    max_priority: 0\n") {
		t.Errorf("%s", limitsyaml.Format(node))
	}
}

func TestMaxPriorityFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"high":     `x:3:19: limits.a.max_priority: max_priority is the text "high"; write a whole number in plain digits, such as 100`,
		"1.5":      `x:3:19: limits.a.max_priority: max_priority is the number 1.5; write a whole number in plain digits, such as 100`,
		`"5"`:      `x:3:19: limits.a.max_priority: max_priority is the text "5"; write 5 without quotes`,
		"[1]":      `x:3:19: limits.a.max_priority: max_priority is a list; write a whole number in plain digits, such as 100`,
		"1000001":  `x:3:19: limits.a.max_priority: max_priority is 1000001; it must be -1000000 to 1000000`,
		"-1000001": `x:3:19: limits.a.max_priority: max_priority is -1000001; it must be -1000000 to 1000000`,
		"99999999999999999999": `x:3:19: limits.a.max_priority: max_priority is 99999999999999999999; ` +
			`it must be -1000000 to 1000000`,
	} {
		if _, err := limitsyaml.Parse("x", []byte("limits:\n  a:\n    max_priority: "+text+"\n")); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", text, err, want)
		}
	}
	if _, err := limitsyaml.Parse("x", []byte("limits: {a: {max_priorty: 5}}")); err == nil || !strings.Contains(err.Error(), "did you mean max_priority?") {
		t.Error(err)
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"a": {MaxPriority: new(-1000001)}})
	if want := "policy: limits.a.max_priority: max_priority is -1000001; it must be -1000000 to 1000000"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
