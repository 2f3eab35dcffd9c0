package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

// limited is a Redis whose limits are changed by the program.
type limited struct {
	t   *testing.T
	url string
}

const liveLimits = `
limits:
  payments:
    rules: [{name: account, algorithm: sliding-window, limit: 200, per: 1s}]
    scopes:
      "*": {rules: [{name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}]}
`

// newLimited has the limits of a file.
func newLimited(t *testing.T) *limited {
	t.Helper()
	l := &limited{t: t, url: ownRedis(t)}
	l.run(0, "import", "-replace", limitsFile(t, liveLimits), "-as", "anna")
	return l
}

// run runs "worker limits", and wants an exit code.
func (l *limited) run(code int, args ...string) (stdout, stderr string) {
	l.t.Helper()
	var out, errs bytes.Buffer
	args = slices.Concat([]string{"limits", "-redis", l.url}, args)
	if got := run(l.t.Context(), args, noEnv, &out, &errs); got != code {
		l.t.Fatalf("%q: exit %d, want %d; stdout %q, stderr %q", args, got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// objects runs it and reads what it prints.
func (l *limited) objects(args ...string) (all []map[string]any) {
	l.t.Helper()
	out, _ := l.run(0, append([]string{"-json"}, args...)...)
	for line := range strings.Lines(out) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			l.t.Fatalf("%v in %s", err, out)
		}
		all = append(all, v)
	}
	return all
}

// says holds what is printed against parts, those that begin with "!" shall be missing.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, missing := strings.CutPrefix(part, "!"); missing == strings.Contains(text, want) {
			t.Errorf("%q is missing: %t, in\n%s", want, !missing, text)
		}
	}
}

func TestLimitsUsage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := run(t.Context(), []string{"limits", "-h"}, noEnv, &out, &out); code != cli.ExitOK {
		t.Errorf("exit %d", code)
	}
	golden(t, filepath.Join("testdata", "limits.golden"), out.String())
	for _, c := range []struct{ args, want string }{
		{"", "nothing to do: list, show, set, assign"},
		{"put", `limits cannot be "put"`},
		{"set payments", "worker limits set takes SCOPE RULE KEY=VALUE"},
		{"list payments", "worker limits list takes flags only"},
		{"list -as anna", "-as does not go with worker limits list"},
		{"rollback 2 -for 1h", "-for does not go with worker limits rollback"},
		{"set p r limit=1 -for never", `"never" is no duration`},
		{"unset a b c", "worker limits unset takes [SCOPE [RULE]]"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"limits"}, strings.Fields(c.args)...), noEnv, &out, &errs); code != cli.ExitUsage || out.Len() > 0 {
			t.Errorf("%q: exit %d, %s", c.args, code, out.String())
		}
		says(t, errs.String(), c.want, "try: ")
	}
}

// From the first file to going back: what a person does, and what the program says.
func TestLimitsCommands(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	out, _ := l.run(0, "set", "payments/acme", "tenant", "limit=100", "-as", "bert")
	says(t, out, "version 2 by bert (user default), in force at ", "+ payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}", "!\n  - ")
	out, _ = l.run(0, "set", "payments/acme", "tenant", "burst=9", "-for", "1h")
	says(t, out, "version 3", "set before by bert (user default) at", "- payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}",
		"+ payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 9}")
	out, _ = l.run(0, "remove", "payments", "account")
	says(t, out, "- payments {name: account")

	out, _ = l.run(0, "list")
	says(t, out, "payments/* {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}  # imported by anna (user default) at 20",
		"burst: 9}  # set by", ", until 20", "payments account was removed  # removed by")
	out, _ = l.run(0, "show", "payments/acme")
	says(t, out, "burst: 9}", "!limit: 20,")
	out, _ = l.run(0, "show", "payments/*")
	says(t, out, "limit: 20,", "!burst: 9")
	out, _ = l.run(0, "export")
	if _, err := readBack(t, out); err != nil {
		t.Error(err)
	}

	out, _ = l.run(1, "diff", limitsFile(t, liveLimits))
	says(t, out, "+ payments {name: account", "- payments/acme {name: tenant")
	l.run(0, "unset", "payments/acme")
	l.run(0, "unset", "payments", "account")
	out, _ = l.run(0, "diff", limitsFile(t, liveLimits))
	if out != "" {
		t.Error(out)
	}
	l.run(0, "rollback", "3")
	out, _ = l.run(0, "show", "payments/acme")
	says(t, out, "burst: 9}", "{name: account")

	out, _ = l.run(0, "assign", "payments", "owner=payments-team", "apps=billing,refunds")
	says(t, out, "+ payments owner: payments-team", "+ payments apps: billing, refunds")
	for _, command := range [][]string{{"list"}, {"show", "payments"}, {"show", "payments/acme"}} {
		out, _ = l.run(0, command...)
		says(t, out, "payments owner: payments-team  # set by ", "payments apps: billing, refunds  # set by ")
	}
	if others := l.objects("show", "payments/acme"); others[0]["rule"] != "owner:" || others[0]["text"] != "payments-team" || others[0]["from"] != "set" {
		t.Errorf("%v", others[0])
	}
	out, _ = l.run(0, "assign", "payments", "hosts=api.example.com,*.example.org")
	says(t, out, "+ payments hosts: api.example.com, *.example.org")
	out, _ = l.run(0, "assign", "payments", "hosts=")
	says(t, out, "- payments hosts: api.example.com, *.example.org")
	_, errs := l.run(1, "assign", "payments", "team=x")
	says(t, errs, `"team=x" is not owner=NAME`)
	for _, wrong := range []string{"weight=0", "weight=x", "shares=a", "shares=a:0", "shares=a:1:2", "shares=a:1,a:2"} {
		key, value, _ := strings.Cut(wrong, "=")
		_, errs = l.run(1, "assign", "payments", wrong)
		says(t, errs, fmt.Sprintf("%s %q is not ", key, value))
	}
	out, _ = l.run(0, "assign", "payments", "weight=3", "shares=interactive:60%,batch:3")
	says(t, out, "+ payments weight: 3", "+ payments shares: {batch: {weight: 3}, interactive: {part: 60%}}")
	out, _ = l.run(0, "show", "payments/interactive")
	says(t, out, "{name: account", "at weight 1.4", "payments weight: 3  # set by ", "payments shares: {batch: {weight: 3}, interactive: {part: 60%}}  # set by ")
	out, _ = l.run(0, "assign", "payments", "answers={cut: 30%, most: 150%}")
	says(t, out, "+ payments answers: {cut: 30%, most: 150%}")
	out, _ = l.run(0, "show", "payments/acme")
	says(t, out, "payments answers: {cut: 30%, most: 150%}  # set by ")
	_, errs = l.run(1, "assign", "payments", "answers={cut: 91%}")
	says(t, errs, "cut is 91%; it must be 1% to 90%")
	l.run(0, "unset", "payments")
	history := l.objects("history")
	if len(history) != 13 {
		t.Fatalf("%v", history)
	}
	for i, v := range history {
		want(t, v, map[string]any{"version": float64(i + 1)})
		at(t, v["at"])
	}
	want(t, history[1], map[string]any{"by": "bert", "change": "set payments/acme tenant limit=100"})
	want(t, history[6], map[string]any{"change": "rollback 3"})
}

func readBack(t *testing.T, text string) (any, error) {
	t.Helper()
	path := limitsFile(t, text)
	return loadPolicy(path)
}

func TestLimitsRefuse(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	for _, c := range []struct{ args, want string }{
		{"set payments/acme tenant limit=-4", "the least is 0"},
		{"set payments/acme tenant limit", `"limit" is not KEY=VALUE`},
		{"set payments/acme tenant limit=4 limit=5", `"limit=5" is not KEY=VALUE, or repeats a key`},
		{"set payments/acme tenant limit=4 -if-version 9", "meant for version 9, and the limits are at version 1"},
		{"remove payments/acme tenant", "payments/acme has no rule \"tenant\" of its own, and inherits {name: tenant"},
		{"unset payments/acme", "it is so already"},
		{"set payments/acme tenant limit=4 -for 100ms", "for 100ms is too short"},
		{"rollback x", `"x" is not a version number`},
		{"rollback 12", "version 12 of the limits is not kept any more"},
		{"show other/x", "meets no rule"},
		{"show payments/*/x", "the limits have no rules at payments/*/x"},
		{"show /", "name 1 is empty"},
		{"reset payments/acme account", "no rate rule account counts at payments/acme itself"},
		{"import no-such-file", "there is no limits file no-such-file"},
	} {
		_, errs := l.run(1, strings.Fields(c.args)...)
		says(t, errs, c.want, "!goroutine")
	}
	empty := &limited{t: t, url: ownRedis(t)}
	_, errs := empty.run(1, "list")
	says(t, errs, "there are no limits at ", "try: worker limits import")
	if history := l.objects("history"); len(history) != 1 {
		t.Errorf("a refused change made a version: %v", history)
	}
}

// An API that refuses http tasks pauses their scope for all workers: it is asked once, "worker
// inspect scope" and "worker limits show" tell it, and "worker limits reset" ends it.
func TestAPIPauses(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	refuse.Store(true)
	a := &api{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.calls.Add(1)
		if refuse.Load() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(a.Close)
	l := &limited{t: t, url: ownRedis(t)}
	l.run(0, "import", "-replace", limitsFile(t, "limits: {payments: {rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1h}]}}"))
	r := start(t, whole, nil, "-redis", l.url, "-allow-host", a.host())
	r.says("msg=ready")
	rdb := open(t, l.url)
	enqueue(t, rdb, a.task("payments", "first"))
	redistest.WaitFor(t, "the refusal", bound, func() bool { return rdb.Exists(t.Context(), "hw:{payments}!upstream").Val() == 1 })
	for i := range 5 {
		enqueue(t, rdb, a.task("payments", fmt.Sprint("more", i)))
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.WaitFor(t, "all to wait", bound, func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && info.Scheduled+info.Retry == 6 && info.Active+info.Pending == 0
	})
	if n := a.calls.Load(); n != 1 {
		t.Errorf("the API was asked %d times", n)
	}
	show := l.objects("show", "payments")[0]
	if show["admits"] != 85.0 || show["admits_until"] == nil {
		t.Errorf("%v", show)
	}
	if out, _ := l.run(0, "show", "payments"); !strings.Contains(out, "; 85 apply, from the API's answers") {
		t.Errorf("%s", out)
	}
	inspect := func(args ...string) string {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"inspect", "-redis", l.url}, args...), noEnv, &out, &errs); code != 0 {
			t.Fatalf("%d: %s", code, errs.String())
		}
		return out.String()
	}
	if out := inspect("scope", "payments"); !strings.Contains(out, "paused     payments until ") || !strings.Contains(out, ", when its pause is over\n") ||
		!strings.Contains(out, "corrected  rule r of payments, 85 of 100 until ") {
		t.Errorf("%s", out)
	}
	var scope map[string]any
	must(t, json.Unmarshal([]byte(inspect("-json", "scope", "payments")), &scope))
	want(t, scope, map[string]any{"waiting": 6.0, "upstream_scope": "payments", "rule": nil})
	if until := at(t, scope["upstream_until"]); time.Until(until) < 50*time.Minute {
		t.Errorf("%v", scope)
	}
	events, _ := scope["upstream_events"].([]any)
	if len(events) != 2 { // in the same microsecond, by their names
		t.Fatalf("%v", scope)
	}
	cut, _ := events[0].(map[string]any)
	want(t, cut, map[string]any{"what": "cut", "scope": "payments", "rule": "r", "status": 429.0, "answered": "payments", "host": a.host()})
	if out := inspect("scope", "payments"); strings.Count(out, "\nanswered   ") != 2 || !strings.Contains(out, ", payments: paused for 1h; the API answered 429, retry after 1h\n") {
		t.Errorf("%s", out)
	}
	refuse.Store(false)
	if got := l.objects("reset", "payments"); len(got) != 2 || got[1]["rule"] != "" {
		t.Errorf("%v", got)
	}
	redistest.WaitFor(t, "all to run", bound, func() bool { return a.calls.Load() == 7 })
	r.stop()
	r.ends(cli.ExitOK)
}

// docs/limits.md: "A change is in force in every worker within a second", from the command
// line to workers that run; the file on change and on SIGHUP, one with faults not at all.
func TestWorkersChange(t *testing.T) {
	t.Parallel()
	l := &limited{t: t, url: ownRedis(t)}
	path := limitsFile(t, someLimits)
	first := start(t, whole, nil, "-redis", l.url, "-limits", path)
	first.says("msg=ready")
	second := start(t, whole, nil, "-redis", l.url)
	second.says("msg=ready")

	l.run(0, "set", "payments", "account", "limit=100", "-as", "anna")
	for _, r := range []*running{first, second} {
		r.says(`msg="limits in force" version=2 change="set payments account limit=100" by=anna`)
	}

	write(t, path, someLimits+"      - {name: account, algorithm: later}\n")
	first.says("invalid limits file; keeping the current limits")
	first.says("algorithm is \\\"later\\\"")
	write(t, path, strings.Replace(someLimits, "per: 1s", "per: 2s", 1))
	first.says("limits file published")
	first.says("rules set live override the limits file")
	for _, r := range []*running{first, second} {
		r.says(`msg="limits in force" version=3 change="publish a limits file"`)
	}
	out, _ := l.run(0, "show", "payments")
	says(t, out, "limit: 100, per: 1s")
	l.run(0, "unset")
	for _, r := range []*running{first, second} {
		r.says(`version=4 change="unset everything"`)
	}
	out, _ = l.run(0, "show", "payments")
	says(t, out, "limit: 200, per: 2s", "# file by worker on ")
	first.stop()
	second.stop()
	first.ends(cli.ExitOK)
	second.ends(cli.ExitOK)
}

// "What else is said of a scope, or of one above it", and of no other.
func TestCovers(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"payments": true, "payments/acme": true, "payments/*": true, "*": true, "*/acme": true, "payments/*/refunds": true,
		"payments/*/*/*": false, "payments/other": false, "pay": false, "payments/acme/refunds/x": false, "payments/ac": false,
	} {
		if got := covers(path, "payments/acme/refunds"); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}

// write writes a file that others may read at any moment.
func write(t *testing.T, path, text string) {
	t.Helper()
	part := path + ".part"
	must(t, os.WriteFile(part, []byte(text), 0o600))
	must(t, os.Rename(part, path))
}
