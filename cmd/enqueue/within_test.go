package main

import (
	"strings"
	"testing"
)

// "-within SCOPE" keeps a tenant's file to its scope, and its ids apart from those of others.
func TestWithinFlag(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	lines := `{"type":"http","id":"1","scope":"search/a","http":{"url":"http://h"}}` + "\n" +
		`{"type":"http","id":"2","scope":"search/b","http":{"url":"http://h"}}` + "\n" +
		`{"type":"http","id":"3","scope":"search/a/x","priority":2,"http":{"url":"http://h"}}` + "\n"
	for _, flags := range [][]string{{"-dry-run"}, nil} {
		got := program(t, url, lines, append(append([]string{"batch", "-json", "-limits", limits, "-within", "search/a"}, flags...), "-")...)
		for _, want := range []string{`"id":"search/a//1"`, `scope: search/b is not within search/a`, `priority: 2 is above 0, the highest within search/a`} {
			if got.code != 1 || !strings.Contains(got.stdout, want) {
				t.Errorf("%q: no %s in %+v", flags, want, got)
			}
		}
	}
	got := program(t, url, lines, "batch", "-limits", limits, "-within", "search/a", "-max-priority", "2", "-")
	if got.code != 1 || !strings.Contains(got.stdout+got.stderr, "id search/a//1 is taken") || strings.Contains(got.stdout, "priority") {
		t.Errorf("%+v", got)
	}
	for priority, code := range map[string]int{"1": 0, "3": 1} {
		got := program(t, url, "", "http", "-limits", limits, "-within", "search/a", "-max-priority", "2", "-priority", priority, "-scope", "search/a", "http://h")
		if told := strings.Contains(got.stderr, "-priority: 3 is above 2, the highest within search/a"); got.code != code || told != (code == 1) {
			t.Errorf("-priority %s: %+v", priority, got)
		}
	}
	if got := program(t, url, "", "batch", "-within", "a//b", "-"); got.code != 2 || !strings.Contains(got.stderr, "-within") {
		t.Errorf("%+v", got)
	}
}
