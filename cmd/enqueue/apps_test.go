package main

import (
	"strings"
	"testing"
)

const appsYAML = `
limits:
  payments: {apps: [billing, refunds], rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1s}], scopes: {nobody: {apps: [mail]}}}
  search: {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1s}]}
`

// "Who enqueues need not be who runs": a warning says which applications may, once for each
// level, and -json has them as a field; where nobody may the task is refused.
func TestWarnsWhereOnlySomeMaySpend(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	const warning = "only workers of billing, refunds run tasks of payments (worker -app NAME); the tasks wait for one of them\n"
	http := func(scope string, args ...string) outcome {
		return program(t, url, "", append(append([]string{"http", "-limits", limits, "-scope", scope}, args...), "http://h")...)
	}
	if got := http("payments/a"); got.code != 0 || got.stderr != "enqueue http: "+warning {
		t.Errorf("%+v", got)
	}
	if got := http("search/a"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	if got := http("payments/a", "-json"); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, `"apps":["billing","refunds"]`) {
		t.Errorf("%+v", got)
	}
	if got := http("payments/nobody"); got.code != 1 || !strings.Contains(got.stderr, "-scope: no application may spend from it") {
		t.Errorf("%+v", got)
	}
	lines := ""
	for _, scope := range []string{"payments/a", "search/a", "payments/b", "payments/nobody"} {
		lines += `{"type":"http","scope":"` + scope + `","http":{"url":"http://h"}}` + "\n"
	}
	got := program(t, url, lines, "batch", "-limits", limits, "-")
	if got.code != 1 || strings.Count(got.stderr, warning) != 1 || !strings.Contains(got.stdout, "line 4: invalid: scope: no application may spend from it") {
		t.Errorf("%+v", got)
	}
	got = program(t, url, lines, "batch", "-json", "-limits", limits, "-")
	if got.code != 1 || strings.Contains(got.stderr, warning) || strings.Count(got.stdout, `"apps":["billing","refunds"]`) != 2 {
		t.Errorf("%+v", got)
	}
	got = program(t, url, lines, "batch", "-dry-run", "-limits", limits, "-")
	if strings.Count(got.stderr, warning) != 1 {
		t.Errorf("%+v", got)
	}
}
