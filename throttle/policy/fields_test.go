package policy_test

import (
	"errors"
	"fmt"
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
		"limits: {a: {apps: [x, x]}}":     `x:1:24: limits.a.apps: application "x" is there already; keep one of the two`,
		"limits: {a: {owner: \"a\\nb\"}}": `x:1:10: limits.a.owner: owner holds the control character U+000A; remove it`,
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

// Faults of hosts: a row is what stands there, at 1:21.
func TestHostsFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"api.example.com":           `1:21: limits.a.hosts: hosts is the text "api.example.com"; write a list of hosts, such as [api.example.com]`,
		"[]":                        `1:21: limits.a.hosts: hosts is empty, and no answer would count; name one, or remove the line`,
		"[https://api.example.com]": `1:22: limits.a.hosts: host "https://api.example.com" is a URL or a path; write its host alone, such as api.example.com`,
		`["a:http"]`:                `1:22: limits.a.hosts: host "a:http" has a port that is no number from 1 to 65535`,
		`["a:70000"]`:               `1:22: limits.a.hosts: host "a:70000" has a port that is no number from 1 to 65535`,
		`["a:b:c"]`:                 `1:22: limits.a.hosts: host "a:b:c" has no port behind its last colon; write HOST or HOST:PORT`,
		"[münchen.example]":         `1:22: limits.a.hosts: host "münchen.example" is not ASCII; write the form that begins with xn--`,
		"[a b]":                     `1:22: limits.a.hosts: host "a b" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*"]`:                     `1:22: limits.a.hosts: host "*" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*.192.0.2.1"]`:           `1:22: limits.a.hosts: host "*.192.0.2.1" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`[a, a]`:                    `1:25: limits.a.hosts: host "a" is there already; keep one of the two`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {hosts: "+text+"}}\n", want)
		})
	}
	many := make([]string, 100+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example", i)
	}
	if _, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"a": {Hosts: many}}); err == nil || !strings.Contains(err.Error(), "hosts are 101; the most is 100") {
		t.Errorf("%v", err)
	}
}
