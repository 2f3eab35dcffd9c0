package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMayUse(t *testing.T) {
	t.Parallel()
	p := mustParse(t, appsText)
	for _, c := range []struct{ scope, app, want string }{
		{"payments", "refunds", ""},
		{"payments", "mail", `throttle: scope "payments": application "mail" may not spend from it; payments is for billing, refunds, a b`},
		{"payments", "", `an application without a name (Config.App) may not spend from it`},
		{"payments/globex", "billing", ""},
		{"payments/globex", "refunds", `payments/globex is for billing`},
		{"payments/acme/x", "refunds", ""},
		{"payments/acme/x", "mail", `payments is for`},
		{"search/x", "", ""},
		{"nobody/knows", "", ""},
	} {
		err := p.Authorize(mustScope(t, c.scope), c.app)
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, new(*policy.AppError)) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s by %q: %v, want %q", c.scope, c.app, err, c.want)
		}
	}
	for scope, want := range map[string]string{
		"payments": "payments-team", "payments/globex": "payments-team", "payments/acme/x": "anna@example.com", "search": "", "x": "",
	} {
		if got := p.Owner(mustScope(t, scope)); got != want {
			t.Errorf("%s is owned by %q, want %q", scope, got, want)
		}
	}
	if again := mustParse(t, string(limitsyaml.Format(p))); string(limitsyaml.Format(again)) != string(limitsyaml.Format(p)) || !strings.Contains(string(limitsyaml.Format(p)), `apps: [billing, refunds, "a b"]`) {
		t.Errorf("%s", limitsyaml.Format(p))
	}
}

func TestAppFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"limits: {a: {apps: []}}":         `x:1:20: limits.a.apps: apps is empty, and nobody could spend from here; name one, or remove the line`,
		"limits: {a: {apps: billing}}":    `x:1:20: limits.a.apps: apps is the text "billing"; write a list of applications, such as [billing]`,
		"limits: {a: {apps: [7]}}":        `x:1:21: limits.a.apps: the application is the number 7; write "7" in quotes if that text is meant`,
		"limits: {a: {apps: [x, x]}}":     `x:1:24: limits.a.apps: application "x" is there already; keep one of the two`,
		"limits: {a: {apps: [a/b]}}":      `x:1:21: limits.a.apps: application "a/b" holds a '/', which divides names; write another character`,
		"limits: {a: {owner: \"a\\nb\"}}": `x:1:10: limits.a.owner: owner holds the control character U+000A; remove it`,
		"limits: {a: {owner: {}}}":        `x:1:21: limits.a.owner: owner is a mapping; write a name, such as account`,
		"limits: {a: {own: x}}":           `x:1:14: limits.a.own: own is not a field of a scope; did you mean owner?`,
	} {
		if _, err := limitsyaml.Parse("x", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", text, err, want)
		}
	}
	many := make([]string, 100+3)
	for i := range many {
		many[i] = strings.Repeat("x", i+1)[:min(i+1, 120)]
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"a": {Apps: many}})
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "is one of 103; the most is 100") {
		t.Errorf("%v", err)
	}
}

const appsText = `
limits:
  payments:
    owner: payments-team
    apps: [billing, refunds, "a b"]
    rules:
      - {name: account, algorithm: concurrency, limit: 2}
    scopes:
      "*":
        apps: [billing]
      acme:
        owner: anna@example.com
        apps: [billing, refunds]
  search: {rules: [{name: plan, algorithm: concurrency, limit: 1}]}
`
