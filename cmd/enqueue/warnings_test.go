package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
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

// "No run is longer than -max-timeout of worker": enqueue tells so of the first task with a longer timeout,
// and enqueues it.
func TestLongTimeoutIsTold(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	const told = " is 87600h0m0s, but workers end a run after 10m0s; if their -max-timeout is longer, give it to enqueue too\n"
	http := func(args ...string) outcome {
		return program(t, url, "", append(append([]string{"http", "-limits", limits, "-scope", "search", "-id"}, args...), "http://h")...)
	}
	if got := http("long", "-timeout", "3650d"); got.code != 0 || got.stderr != "enqueue http: the timeout of long"+told {
		t.Errorf("%+v", got)
	}
	if got := http("allowed", "-timeout", "3650d", "-max-timeout", "90000h"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	if got := http("short", "-timeout", "10m"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	lines := ""
	for _, id := range []string{"a", "b"} {
		lines += `{"type":"http","id":"` + id + `","scope":"search","timeout":"3650d","http":{"url":"http://h"}}` + "\n"
	}
	for _, row := range []struct {
		flags string
		times int
	}{{"-dry-run", 1}, {"-json", 1}, {"-remember=1h", 0}} { // they are there already, by then
		got := program(t, url, lines, "batch", "-limits", limits, row.flags, "-")
		if got.code != 0 || strings.Count(got.stderr, told) != row.times {
			t.Errorf("%s: %+v", row.flags, got)
		}
	}
}

// docs/tracing.md: "enqueue puts the context of the variables TRACEPARENT and TRACESTATE into each task. It warns once of a
// malformed value, and ignores it."
func TestTraceOfTheEnvironment(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	url, rdb := private(t)
	batch := file(t, "tasks.ndjson", `{"type":"mail","scope":"mail/acme","id":"one"}`+"\n"+`{"type":"mail","scope":"mail/acme","id":"two"}`+"\n")
	for name, tt := range map[string]struct{ parent, state, wantParent, wantState, warning string }{
		"none":             {"", "", "", "", ""},
		"parent":           {parent, "", parent, "", ""},
		"both":             {parent, "vendor=1", parent, "vendor=1", ""},
		"state alone":      {"", "vendor=1", "", "", ""},
		"malformed parent": {parent[:54], "vendor=1", "", "", "the variable TRACEPARENT is no W3C traceparent"},
		"malformed state":  {parent, "vendor", parent, "", "the variable TRACESTATE is no W3C tracestate"},
		"both malformed":   {"secret", "secret", "", "", "the variable TRACEPARENT is no W3C traceparent"},
		"upper case":       {strings.ToUpper(parent), "", "", "", "the variable TRACEPARENT is no W3C traceparent"},
	} {
		for command, args := range map[string][]string{
			"batch": {"batch", "-json", batch},
			"http":  {"http", "-scope", "mail/acme", "-id", "one", "http://h.example/"},
		} {
			rdb.FlushAll(t.Context())
			getenv := func(key string) string {
				return map[string]string{"REDIS_URL": url, "TRACEPARENT": tt.parent, "TRACESTATE": tt.state, "HEADWAY_LIMITS": ""}[key]
			}
			var stdout, stderr bytes.Buffer
			args := append(args[:1:1], append([]string{"-limits", file(t, "limits.yaml", traceLimits)}, args[1:]...)...)
			if code := run(t.Context(), args, getenv, strings.NewReader(""), &stdout, &stderr); code != cli.ExitOK {
				t.Fatalf("%s of %s: %d, %s", command, name, code, stderr.String())
			}
			told := stderr.String()
			warned := 0
			if tt.warning != "" {
				warned = 1
			}
			if !strings.Contains(told, tt.warning) || strings.Count(told, "the variable") != warned || strings.Contains(told, "secret") {
				t.Errorf("%s of %s: %q", command, name, told)
			}
			ids := map[string][]string{"batch": {"one", "two"}, "http": {"one"}}[command]
			for _, id := range ids {
				info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("default", id)
				must(t, err)
				gotParent, has := info.Headers["traceparent"]
				gotState, hasState := info.Headers["tracestate"]
				if gotParent != tt.wantParent || gotState != tt.wantState || has != (tt.wantParent != "") || hasState != (tt.wantState != "") {
					t.Errorf("%s of %s: %s has %q", command, name, id, info.Headers)
				}
				if _, waits := info.Headers[queue.HeaderWaitsFor]; waits != (tt.wantParent != "") {
					t.Errorf("%s of %s: %s has %q", command, name, id, info.Headers)
				}
			}
		}
	}
}

const traceLimits = `limits: {mail: {rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1h}]}}`
