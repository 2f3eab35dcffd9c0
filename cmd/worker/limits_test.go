package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
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
	return ask(l.t, code, slices.Concat([]string{"limits", "-redis", l.url}, args)...)
}

// says runs it with the words of a line, and holds what it prints, or of a failure says, against parts.
func (l *limited) says(code int, line string, parts ...string) {
	l.t.Helper()
	out, errs := l.run(code, strings.Fields(line)...)
	if code != cli.ExitOK && out == "" {
		out = errs
	}
	says(l.t, out, parts...)
}

// objects runs it and reads what it prints.
func (l *limited) objects(args ...string) []map[string]any {
	l.t.Helper()
	out, _ := l.run(0, append([]string{"-json"}, args...)...)
	return objects(l.t, out)
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

// From the first file to going back: what a person does, and what the program says.
func TestLimitsCommands(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.says(0, "set payments/acme tenant limit=100 -as bert", "version 2 by bert (user default), in force at ",
		"+ payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}", "!\n  - ")
	l.says(0, "set payments/acme tenant burst=9 -for 1h", "version 3", "set before by bert (user default) at",
		"- payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}",
		"+ payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 9}")
	l.says(0, "remove payments account", "- payments {name: account")

	l.says(0, "list", "payments/* {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}  # imported by anna (user default) at 20",
		"burst: 9}  # set by", ", until 20", "payments account was removed  # removed by")
	l.says(0, "show payments/acme", "burst: 9}", "!limit: 20,")
	l.says(0, "show payments/*", "limit: 20,", "!burst: 9")
	out, _ := l.run(0, "export")
	if _, err := readLimits(limitsFile(t, out)); err != nil {
		t.Error(err)
	}

	l.says(1, "diff "+limitsFile(t, liveLimits), "+ payments {name: account", "- payments/acme {name: tenant")
	l.run(0, "unset", "payments/acme")
	l.run(0, "unset", "payments", "account")
	if out, _ := l.run(0, "diff", limitsFile(t, liveLimits)); out != "" {
		t.Error(out)
	}
	l.run(0, "rollback", "3")
	l.says(0, "show payments/acme", "burst: 9}", "{name: account")
	history := l.objects("history")
	if len(history) != 7 {
		t.Fatalf("%v", history)
	}
	for i, v := range history {
		want(t, v, map[string]any{"version": float64(i + 1)})
		at(t, v["at"])
	}
	want(t, history[1], map[string]any{"by": "bert", "change": "set payments/acme tenant limit=100"})
	want(t, history[6], map[string]any{"change": "rollback 3"})
}

// "worker limits assign": owners, applications, hosts, weights, shares, and what answers may change.
func TestLimitsAssign(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	for _, c := range []struct{ args, want string }{
		{"owner=payments-team apps=billing,refunds", "+ payments apps: billing, refunds"},
		{"hosts=api.example.com,*.example.org", "+ payments hosts: api.example.com, *.example.org"},
		{"hosts=", "- payments hosts: api.example.com, *.example.org"},
		{"weight=3 shares=interactive:60%,batch:3", "+ payments shares: {batch: {weight: 3}, interactive: {part: 60%}}"},
	} {
		l.says(0, "assign payments "+c.args, c.want)
	}
	out, _ := l.run(0, "assign", "payments", "answers={cut: 30%, most: 150%}")
	says(t, out, "+ payments answers: {cut: 30%, most: 150%}")
	for _, command := range []string{"list", "show payments", "show payments/acme"} {
		l.says(0, command, "payments owner: payments-team  # set by ", "payments apps: billing, refunds  # set by ",
			"payments answers: {cut: 30%, most: 150%}  # set by ")
	}
	l.says(0, "show payments/interactive", "{name: account", "at weight 1.4", "payments weight: 3  # set by ")
	if others := l.objects("show", "payments/acme"); others[0]["rule"] != "owner:" || others[0]["text"] != "payments-team" || others[0]["from"] != "set" {
		t.Errorf("%v", others[0])
	}
	out, _ = l.run(0, "assign", "payments", "breaker={of: 50, retry: false}")
	says(t, out, "+ payments breaker: {failures: 50%, of: 50, retry: false}")
	for wrong, want := range map[string]string{
		"breaker={wait: 1h}": "wait is 1h; the most is 10m",
		"team=x":             `"team=x" is not owner=NAME`, "weight=0": `weight "0" is not `, "shares=a:1,a:2": `shares "a:1,a:2" is not `, "answers={cut: 91%}": "cut is 91%; it must be 1% to 90%",
	} {
		_, errs := l.run(1, "assign", "payments", wrong)
		says(t, errs, want)
	}
}

func TestLimitsRefuse(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	for _, c := range []struct{ args, want string }{
		{"set payments/acme tenant limit=-4", "the least is 0"},
		{"set payments/acme tenant limit=4 limit=5", `"limit=5" is not KEY=VALUE, or repeats a key`},
		{"set payments/acme tenant limit=4 -if-version 9", "meant for version 9, and the limits are at version 1"},
		{"remove payments/acme tenant", "payments/acme has no rule \"tenant\" of its own, and inherits {name: tenant"},
		{"set payments/acme tenant limit=4 -for 100ms", "for 100ms is too short"},
		{"rollback 12", "version 12 of the limits is not kept any more"},
		{"show other/x", "meets no rule"},
		{"show payments/*/x", "the limits have no rules at payments/*/x"},
		{"reset payments/acme account", "no rate rule account counts at payments/acme itself"},
	} {
		l.says(1, c.args, c.want, "!goroutine")
	}
	(&limited{t: t, url: ownRedis(t)}).says(1, "list", "there are no limits at ", ", or worker limits import")
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
	start(t, whole, nil, "-redis", l.url, "-allow-host", a.host()).says("msg=ready")
	rdb := open(t, l.url)
	enqueue(t, rdb, a.task("payments", "first"))
	redistest.WaitFor(t, "the refusal", bound, func() bool { return rdb.Exists(t.Context(), "hw:{payments}:api").Val() == 1 })
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
	l.says(0, "show payments", "; 85 apply, from the API's answers")
	i := &inspected{t: t, url: l.url}
	i.says(0, "scope payments", "paused     payments until ", ", when its pause is over\n",
		"corrected  rule r of payments, 85 of 100 until ", "payments: paused for 1h; the API answered 429, retry after 1h\n")
	scope := i.objects("scope", "payments")[0]
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
	refuse.Store(false)
	if got := l.objects("reset", "payments"); len(got) != 2 || got[1]["rule"] != "" {
		t.Errorf("%v", got)
	}
	redistest.WaitFor(t, "all to run", bound, func() bool { return a.calls.Load() == 7 })
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
	first.says("live changes override the limits file")
	for _, r := range []*running{first, second} {
		r.says(`msg="limits in force" version=3 change="publish a limits file"`)
	}
	l.says(0, "show payments", "limit: 100, per: 1s")
	l.run(0, "unset")
	for _, r := range []*running{first, second} {
		r.says(`version=4 change="unset everything"`)
	}
	l.says(0, "show payments", "limit: 200, per: 2s", "# file by worker on ")
}

// write writes a file that others may read at any moment.
func write(t *testing.T, path, text string) {
	t.Helper()
	part := path + ".part"
	must(t, os.WriteFile(part, []byte(text), 0o600))
	must(t, os.Rename(part, path))
}

// Tasks that wait are counted, changed and cancelled by the command line, which says of how many, and why others were left.
func TestTasks(t *testing.T) {
	t.Parallel()
	i := inspectedUnder(t, "limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 1, per: 30d}]}}")
	i.use("p/a")
	wait := func(n int) {
		for k := range n {
			i.enqueue(queue.Task{Scope: "p/a", ID: fmt.Sprint("t", k)})
		}
	}
	wait(5)
	enqueue(t, i.rdb, queue.Task{Type: "work", Scope: "p/a", ID: "pending"}, queue.Task{Type: "work", Scope: "p/a", ID: "failed"})
	must(t, asynq.NewInspectorFromRedisClient(i.rdb).ArchiveTask("default", "failed"))
	says := func(code int, line, want string) string {
		t.Helper()
		out, errs := ask(t, code, append([]string{"tasks", "-redis", i.url}, strings.Fields(line)...)...)
		if !strings.Contains(out+errs, want) {
			t.Errorf("%s: got %q, want %q", line, out+errs, want)
		}
		return out + errs
	}
	says(0, "cancel -scope p -dry-run", "dry run: it would be 5 tasks; nothing was changed")
	says(0, "cancel t0 -dry-run", "dry run: it would be 1 task; nothing was changed")
	says(0, "run t3", "1 task to start next")
	says(0, "run failed", "1 task to start next")
	says(1, "run failed", "0 tasks to start next; 1 left: next to be taken by a worker")
	says(1, "run pending", "0 tasks to start next; 1 left: next to be taken by a worker")
	says(0, "move -to p/b t1 t2", "2 tasks moved")
	says(0, "priority -set 5 -scope p/b", "2 tasks changed")
	says(0, "cancel -scope p/a -limit 1", "1 task cancelled; more wait; run it again")
	says(0, "cancel -scope p -queue low", "0 tasks cancelled")
	says(1, "cancel none", "there is no task none (queues: default)")
	says(1, "move -to nowhere t1", "scope \"nowhere\" meets no rule")
	says(1, "priority -set 9000000 t1", "priority 9000000 is not from -1000000 to 1000000")
	says(2, "", "no command given: cancel, clear, history, move, priority, run")
	says(2, "cancel", "no task is named, and no -scope")
	says(2, "cancel t1 -scope p", "tasks are named by their ids or by -scope, not by both")
	says(2, "cancel t1 -to p/b", "unknown flag -to")
	says(2, "move t1", `required flag(s) "to" not set`)
	says(2, "cancel -scope p -limit 0", "-limit 0 is not from 1 to 10000")
	says(2, "history -scope p", "unknown flag -scope")
	says(0, "priority -set 7 -scope p/b -as anna -reason urgent", "2 tasks changed")
	says(0, "history", "  anna  priority 2 tasks of p/b to priority 7 (urgent)\n")
	says(0, "history", "cancel 1 task of p/a\n")
	says(0, "history -json", `"by":"anna","via":"cli","verb":"priority","scope":"p/b"`)
	all := objects(t, says(0, "cancel -scope p/b -json -reason test", ""))
	if len(all) != 3 {
		t.Fatal(all)
	}
	want(t, all[0], map[string]any{"queue": "default", "scope": "p/b", "outcome": "changed"})
	want(t, all[2], map[string]any{"tasks": 2.0, "changed": 2.0})
	says(2, "clear p -queue low", "unknown flag -queue")
	says(2, "clear p -limit 5", "unknown flag -limit")
	says(0, "clear p -dry-run", "dry run: it would be 2 tasks; nothing was changed")
	says(0, "clear p/b", "worker tasks clear: cancelling 0 tasks of p/b and below it\n")
	says(0, "clear p -as anna -reason wrong", "2 tasks cancelled\nworker tasks clear: cancelling 2 tasks of p and below it\n")
	says(0, "clear p -json", `{"tasks":0,"changed":0}`)
	says(0, "history", "  anna  clear 2 tasks of p (wrong)\n")

	wait(5) // clear goes on in steps until none is left
	service := control.New(control.Config{Redis: i.rdb, Limiter: i.limits, Store: policystore.New(i.rdb, policystore.Config{})})
	var out bytes.Buffer
	c := &tasksCommand{change: control.TaskChange{Verb: control.VerbClear, Scope: "p", Most: 2}}
	c.json, c.out, c.errs, c.as = true, cli.Output{W: &out, JSON: true}, io.Discard, "anna"
	must(t, c.clear(t.Context(), service))
	if got := out.String(); strings.Count(got, `"outcome":"changed"`) != 5 || !strings.HasSuffix(got, `{"tasks":5,"changed":5}`+"\n") {
		t.Error(got)
	}
}
