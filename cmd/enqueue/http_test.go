package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

const limitsYAML = "limits:\n  a:\n    rules:\n      - {name: r, algorithm: token-bucket, limit: 9, per: 1s, burst: 4}\n"

func TestHTTP(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", limitsYAML)
	body := file(t, "body.json", "{\"amount\":100}\n")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for name, tt := range map[string]struct {
		args    []string
		payload string
		spec    queue.Spec
		remain  time.Duration
	}{
		"least": {
			[]string{"http://h/"}, `{"method":"GET","url":"http://h/"}`,
			queue.Spec{Cost: 1, Budget: 25, Timeout: 30 * time.Second}, 24 * time.Hour,
		},
		"all": {
			[]string{
				"-cost", "4", "-priority", "-7", "-max-retry", "0", "-delay", "1h", "-timeout", "10s", "-deadline", "2031-01-01T00:00:00Z", "-remember", "7d",
				"-method", "POST", "-header", "X-A: 1: 2 ", "-header", "X-B:", "-body", "@" + body, "https://h/?q=<&>",
			},
			`{"method":"POST","url":"https://h/?q=<&>","headers":{"X-A":"1: 2","X-B":""},"body":"{\"amount\":100}\n"}`,
			queue.Spec{Cost: 4, Priority: -7, Timeout: 10 * time.Second, Deadline: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)}, 7 * 24 * time.Hour,
		},
		"cost by unit": {
			[]string{"-cost", "2", "-cost", "requests=1,tokens=1500", "-remember", "0", "-body", "x@y", "http://h"}, `{"method":"GET","url":"http://h","body":"x@y"}`,
			queue.Spec{Costs: policy.Costs{"requests": 1, "tokens": 1500}, Budget: 25, Timeout: 30 * time.Second}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := redistest.Prefix(t)
			args := append([]string{"http", "-limits", limits, "-scope", "a/b", "-id", "x", "-queue", q}, tt.args...)
			if got := program(t, url, "", args...); got != (outcome{stdout: "enqueued x in queue " + q + "\n"}) {
				t.Fatalf("%+v", got)
			}
			task, err := inspector.GetTaskInfo(q, "x")
			must(t, err)
			tt.spec.ID, tt.spec.Scope = "x", "a/b"
			spec, _, err := queue.ReadSpec(asynq.NewTaskWithHeaders(task.Type, nil, task.Headers))
			spec.Due = time.Time{} // by the clock
			if !reflect.DeepEqual(spec, tt.spec) || err != nil || task.Type != "http" || string(task.Payload) != tt.payload || task.State != asynq.TaskStateScheduled || task.Retention != tt.remain {
				t.Errorf("%+v %v\n%s %s %v %v", spec, err, task.Type, task.Payload, task.State, task.Retention)
			}
			// "An id that is taken is reported as duplicate and nothing is changed."
			if got := program(t, url, "", args...); got != (outcome{stdout: "duplicate x in queue " + q + "\n"}) {
				t.Errorf("again: %+v", got)
			}
		})
	}
}

func TestHTTPJSON(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", limitsYAML)
	told, codes := "", ""
	for _, args := range [][]string{
		{"-id", "<x>", "-scope", "a"}, {"-id", "<x>", "-scope", "a"}, {"-id", "y", "-scope", "b"}, {"-id", "y", "-scope", "a", "-cost", "5"},
	} {
		got := program(t, url, "", append(append([]string{"http", "-json", "-limits", limits}, args...), "http://h")...)
		told, codes = told+got.stdout, codes+fmt.Sprint(got.code)
		if (got.stderr == "") != (got.code == 0) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	golden(t, "http_json.golden", elapsed(told))
	if codes != "0011" {
		t.Errorf("exit codes %s", codes)
	}
}

// "The policy is the one that workers published, unless -limits names a file." With neither, enqueue warns and checks nothing.
func TestHTTPPublishedPolicy(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", "unmatched: allow\nlimits:\n  c:\n    rules: []\n")
	enqueue := func(more ...string) outcome {
		return program(t, url, "", append(append([]string{"http"}, more...), "-scope", "b", "http://h")...)
	}
	if got := enqueue(); got.code != cli.ExitOK || got.stderr != "enqueue http: "+noPolicy {
		t.Errorf("nothing published: %+v", got)
	}
	published(t, rdb, limitsYAML)
	want := outcome{code: cli.ExitFailed, stderr: "enqueue http: -scope: \"b\" meets no rule and the policy denies such scopes; correct the scope, give it a rule, or write unmatched: allow\n"}
	if got := enqueue(); got != want {
		t.Errorf("published: %+v", got)
	}
	if got := enqueue("-limits", limits); got.code != cli.ExitOK || got.stderr != "" {
		t.Errorf("a file stands over it: %+v", got)
	}
}

// -allow-method adds to the list of methods, and each command names the place of a method that is not in it.
func TestAllowMethod(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	const line = `{"type":"http","scope":"a","http":{"method":"PROPFIND","url":"http://h"}}` + "\n"
	schedules := "schedules: {x: {cron: '@daily', task: {type: http, scope: a, http: {method: PROPFIND, url: 'http://h'}}}}"
	const fault = `"PROPFIND": not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS; if it is meant, name it with -allow-method, for enqueue and the workers`
	for name, tt := range map[string]struct {
		stdin string
		args  []string
		code  int
		fault string
	}{
		"http":      {"", []string{"http", "-scope", "a", "-method", "PROPFIND", "http://h"}, cli.ExitUsage, "enqueue http: -method: " + fault},
		"batch":     {"\n" + line, []string{"batch", "-"}, cli.ExitFailed, "line 2: invalid: http.method: " + fault},
		"dry run":   {line, []string{"batch", "-dry-run", "-"}, cli.ExitFailed, "line 1: invalid: http.method: " + fault},
		"schedules": {schedules, []string{"schedules", "-"}, cli.ExitFailed, "standard input:1:77: schedules.x.task.http.method: " + fault},
	} {
		program(t, url, tt.stdin, tt.args...).says(t, tt.code, tt.fault)
		allowed := append([]string{tt.args[0], "-allow-method", "LOCK", "-allow-method", "PROPFIND"}, tt.args[1:]...)
		if got := program(t, url, tt.stdin, allowed...); got.code != cli.ExitOK {
			t.Errorf("%s, allowed: %+v", name, got)
		}
		refused := append([]string{tt.args[0], "-allow-method", "TRACE"}, tt.args[1:]...)
		program(t, url, tt.stdin, refused...).says(t, cli.ExitUsage, `-allow-method "TRACE": a method that has`)
	}
}

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
	http("payments/a", "-json").says(t, cli.ExitOK, `"apps":["billing","refunds"]`)
	http("payments/nobody").says(t, cli.ExitFailed, "-scope: no application may spend from it")
	lines := tasksOf("payments/a", 1) + tasksOf("search/a", 1) + tasksOf("payments/b", 1) + tasksOf("payments/nobody", 1)
	batch := func(flags ...string) outcome {
		return program(t, url, lines, append(append([]string{"batch", "-limits", limits}, flags...), "-")...)
	}
	plain, object := batch(), batch("-json")
	plain.says(t, cli.ExitFailed, "line 4: invalid: scope: no application may spend from it")
	if strings.Count(object.stdout, `"apps":["billing","refunds"]`) != 2 {
		t.Errorf("%+v", object)
	}
	for want, runs := range map[int][]outcome{1: {http("payments/a"), plain, batch("-dry-run")}, 0: {http("search/a"), http("payments/a", "-json"), object}} {
		for _, got := range runs {
			if strings.Count(got.stderr, warning) != want {
				t.Errorf("not %d warnings: %+v", want, got)
			}
		}
	}
}

// "-within SCOPE" keeps a tenant's file to its scope, and its ids apart from those of others.
func TestWithinFlag(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	lines := `{"type":"t","id":"1","scope":"search/a"}` + "\n" + `{"type":"t","id":"2","scope":"search/b"}` + "\n" +
		`{"type":"t","id":"3","scope":"search/a/x","priority":2}` + "\n"
	batch := func(flags ...string) outcome {
		return program(t, url, lines, append(append([]string{"batch", "-limits", limits, "-within", "search/a"}, flags...), "-")...)
	}
	for _, got := range []outcome{batch("-json", "-dry-run"), batch("-json")} {
		got.says(t, cli.ExitFailed, `"id":"search/a//1"`, `scope: search/b is not within search/a`, `priority: 2 is above 0, the highest within search/a`)
	}
	got := batch("-max-priority", "2")
	got.says(t, cli.ExitFailed, "id search/a//1 is taken")
	if strings.Contains(got.stdout, "priority") {
		t.Errorf("%+v", got)
	}
	for priority, want := range map[string]string{"1": "enqueued", "3": "-priority: 3 is above 2, the highest within search/a"} {
		got := program(t, url, "", "http", "-limits", limits, "-within", "search/a", "-max-priority", "2", "-priority", priority, "-scope", "search/a", "http://h")
		got.says(t, map[string]int{"1": cli.ExitOK, "3": cli.ExitFailed}[priority], want)
	}
	program(t, url, "", "batch", "-within", "a//b", "-").says(t, cli.ExitUsage, "-within")
}

// "No run is longer than -max-timeout of worker": enqueue warns of the first task with a longer timeout, and enqueues it.
func TestLongTimeoutIsTold(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", appsYAML)
	const told = " is 87600h0m0s, but workers end a run after 10m0s; if their -max-timeout is longer, give it to enqueue too\n"
	http := func(args ...string) outcome {
		return program(t, url, "", append(append([]string{"http", "-limits", limits, "-scope", "search", "-id"}, args...), "http://h")...)
	}
	for want, runs := range map[int][]outcome{
		1: {http("long", "-timeout", "3650d")},
		0: {http("allowed", "-timeout", "3650d", "-max-timeout", "90000h"), http("short", "-timeout", "10m")},
	} {
		for _, got := range runs {
			if got.code != cli.ExitOK || strings.Count(got.stderr, "enqueue http: the timeout of long"+told) != want || (got.stderr == "") != (want == 0) {
				t.Errorf("not told %d times: %+v", want, got)
			}
		}
	}
	lines := strings.ReplaceAll(tasksOf("search", 2), `{`, `{"timeout":"3650d",`)
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

// docs/costs.md, "Names": enqueue warns once of a unit that is most likely misspelt, and enqueues the task.
func TestMisspeltUnit(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", "limits: {llm: {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1s, unit: tokens}]}}")
	const warning = "a costs token, which no rule of its scope counts; did you mean tokens?\n"
	line := `{"type":"t","id":"%s","scope":"llm","cost":{"token":5}}` + "\n"
	lines := fmt.Sprintf(line, "a") + fmt.Sprintf(line, "b")
	for _, flag := range []string{"-dry-run", "-json"} {
		got := program(t, url, lines, "batch", "-limits", limits, flag, "-")
		if got.code != 0 || strings.Count(got.stderr, "did you mean") != 1 || !strings.Contains(got.stderr, warning) {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}

// docs/tracing.md: "enqueue puts the context of the variables TRACEPARENT and TRACESTATE into each task. It warns once of a
// malformed value, and ignores it."
func TestTraceOfTheEnvironment(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	url, rdb := private(t)
	limits := file(t, "limits.yaml", "limits: {mail: {rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1h}]}}")
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
			env := map[string]string{"REDIS_URL": url, "HEADWAY_LIMITS": limits, "TRACEPARENT": tt.parent, "TRACESTATE": tt.state}
			got := programIn(t, env, strings.NewReader(""), args...)
			got.says(t, cli.ExitOK, tt.warning)
			if told := strings.Count(got.stderr, "the variable"); told != min(1, len(tt.warning)) || strings.Contains(got.stderr, "secret") {
				t.Errorf("%s of %s: %q", command, name, got.stderr)
			}
			for _, id := range map[string][]string{"batch": {"one", "two"}, "http": {"one"}}[command] {
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
