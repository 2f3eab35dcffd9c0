package main

import (
	"fmt"
	"reflect"
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

// TestHTTPPublishedPolicy holds that "the policy is the one that workers published, unless -limits names a file; with neither,
// nothing is checked against it", and that this is told.
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

// TestAllowMethod holds that methods are a list, that -allow-method adds to it, and that each
// command tells what is not in it with its place.
func TestAllowMethod(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	const line = `{"type":"http","scope":"a","http":{"method":"PROPFIND","url":"http://h"}}` + "\n"
	schedules := "schedules: {x: {cron: '@daily', task: {type: http, scope: a, http: {method: PROPFIND, url: 'http://h'}}}}"
	const fault = `"PROPFIND": not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS; if it is meant, -allow-method allows it, here and for the workers`
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
		program(t, url, tt.stdin, refused...).says(t, cli.ExitUsage, `invalid value "TRACE" for flag -allow-method: a method that has`)
	}
}
