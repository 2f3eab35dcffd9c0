package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

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
			for i, id := range ids {
				info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("default", id)
				must(t, err)
				gotParent, has := info.Headers["traceparent"]
				gotState, hasState := info.Headers["tracestate"]
				if gotParent != tt.wantParent || gotState != tt.wantState || has != (tt.wantParent != "") || hasState != (tt.wantState != "") {
					t.Errorf("%s of %s: %s has %q", command, name, id, info.Headers)
				}
				if _, waits := info.Headers[queue.HeaderWaitsFor]; waits != (i == 1 && tt.wantParent != "") {
					t.Errorf("%s of %s: %s has %q", command, name, id, info.Headers)
				}
			}
		}
	}
}

const traceLimits = `limits: {mail: {rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1h}]}}`
