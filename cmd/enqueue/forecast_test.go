package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

const tenantsYAML = `limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 100, per: 1s}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 10, per: 1s}
      paused:
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 0, per: 1s}
`

// tasksOf is n lines of a scope.
func tasksOf(scope string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"type":"mail","scope":%q,"id":"%s%d"}`+"\n", scope, strings.ReplaceAll(scope, "/", "-"), i)
	}
	return b.String()
}

// starts reads what -json printed: the starts of the lines that have one, and the
// last object.
func starts(t *testing.T, stdout string) (at []time.Time, end map[string]any) {
	t.Helper()
	for line := range strings.Lines(stdout) {
		end = map[string]any{}
		if err := json.Unmarshal([]byte(line), &end); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if text, ok := end["start"].(string); ok {
			start, err := time.Parse(time.RFC3339, text)
			must(t, err)
			at = append(at, start)
		}
	}
	return at, end
}

// TestBatchTellsWhenItIsDone holds that each task's start is told, the last as
// done_at, and the rule that binds; and that a dry run has said the same before,
// and done nothing.
func TestBatchTellsWhenItIsDone(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := file(t, "tasks.ndjson", tasksOf("payments/acme", 31)+tasksOf("payments/b", 5))
	// Somebody waits already: whoever goes straight to a queue is unknown until then.
	began := time.Now()
	if got := program(t, url, strings.ReplaceAll(tasksOf("payments/acme", 5), `"id":"`, `"id":"first-`), "batch", "-limits", limits, "-"); got.code != cli.ExitOK {
		t.Fatalf("%+v", got)
	}
	keys := rdb.DBSize(t.Context()).Val()
	dry := program(t, url, "", "batch", "-dry-run", "-limits", limits, "-json", tasks)
	if n := rdb.DBSize(t.Context()).Val(); dry.code != cli.ExitOK || dry.stderr != "" || n != keys {
		t.Errorf("%d keys after %+v", n, dry)
	}
	batch := program(t, url, "", "batch", "-limits", limits, "-json", tasks)
	passed := time.Since(began) + time.Millisecond
	if passed > 2*time.Second {
		passed += 250 * time.Millisecond // those who went straight may be forgotten by now
	}
	if batch.code != cli.ExitOK || batch.stderr != "" {
		t.Errorf("%+v", batch)
	}
	told, forecast := starts(t, dry.stdout)
	was, end := starts(t, batch.stdout)
	if len(told) != 36 || len(was) != 36 {
		t.Fatalf("%d and %d starts in\n%s%s", len(told), len(was), dry.stdout, batch.stdout)
	}
	for i := range was {
		if off := was[i].Sub(told[i]); max(off, -off) > passed {
			t.Errorf("line %d: forecast for %s, %s off", i+1, told[i], off)
		}
	}
	if wait := was[30].Sub(began); wait < 3*time.Second || wait > 3800*time.Millisecond+passed {
		t.Errorf("the last of 31 at 10 a second, behind at most 5, starts in %s", wait)
	}
	for what, sum := range map[string]map[string]any{"forecast": forecast, "batch": end} {
		if sum["bound_scope"] != "payments/acme" || sum["bound_rule"] != "tenant" || sum["unknown_starts"] != 0. {
			t.Errorf("%s: %v", what, sum)
		}
	}
	if done := was[30].UTC().Format("2006-01-02T15:04:05.000Z07:00"); end["done_at"] != done || forecast["valid"] != 36. || end["enqueued"] != 36. {
		t.Errorf("done at %s: %v, forecast %v", done, end, forecast)
	}
	if scheduled := rdb.ZCard(t.Context(), "asynq:{default}:scheduled").Val(); scheduled < 30 {
		t.Errorf("%d tasks out of everybody's way", scheduled)
	}
}

// unserved is what a dry run says where no worker runs.
const unserved = "no live worker serves queue default: its tasks start when one does\n"

// TestForecastForPeople holds what a dry run prints without -json, and that it tells
// of bad lines as enqueuing would.
func TestForecastForPeople(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := tasksOf("payments/acme", 20) + tasksOf("payments/acme", 1) + "no task\n" + tasksOf("search", 1)
	got := program(t, url, tasks, "batch", "-dry-run", "-limits", limits, "-")
	want := "line 21: duplicate: id payments-acme0 of queue default is on a line before\n" +
		"line 22: invalid: not JSON at byte 2: invalid character 'o' in literal null (expecting 'u')\n" +
		"line 23: invalid: scope: \"search\" meets no rule and the policy denies such scopes; correct the scope, give it a rule, or write unmatched: allow\n" +
		"23 lines: 20 valid, 1 duplicate, 2 invalid in N\n" +
		"nothing was enqueued. If it were enqueued now: done at T, bound by payments/acme tenant\n" + unserved
	if got.stdout = elapsed(got.stdout); got != (outcome{code: cli.ExitFailed, stdout: want}) {
		t.Errorf("got  %+v\nwant %s", got, want)
	}
	got = program(t, url, tasksOf("payments/paused", 3), "batch", "-dry-run", "-limits", limits, "-")
	want = "3 lines: 3 valid, 0 duplicate, 0 invalid in N\n" +
		"nothing was enqueued. If it were enqueued now: done at an unknown time: the starts of 3 are unknown\n" +
		"line 1 has no known start: rule tenant of payments/paused has limit 0\n" + unserved
	if got.stdout = elapsed(got.stdout); got != (outcome{stdout: want}) {
		t.Errorf("got  %+v\nwant %s", got, want)
	}
	paused := file(t, "paused.yaml", tenantsYAML+"  stopped: {paused: true}\n  later: {paused: true, paused_until: 2200-01-31T12:00:00.5Z}\n")
	when := time.Date(2200, 1, 31, 12, 0, 1, 0, time.UTC).Local().Format(time.DateTime)
	for scope, want := range map[string]string{
		"stopped/a": "done at an unknown time: the starts of 3 are unknown\nstopped is paused\n",
		"later":     "done at " + when + ", bound by the pause of later\nlater is paused until " + when + "\n",
	} {
		want = "3 lines: 3 valid, 0 duplicate, 0 invalid in N\nnothing was enqueued. If it were enqueued now: " + want + unserved
		got := program(t, url, tasksOf(scope, 3), "batch", "-dry-run", "-limits", paused, "-")
		if got.stdout = inN(got.stdout); got != (outcome{stdout: want}) {
			t.Errorf("got  %+v\nwant %s", got, want)
		}
	}
	got = program(t, url, numbered(0, 2), "batch", "-dry-run", "-")
	want = "2 lines: 2 valid, 0 duplicate, 0 invalid in N\n" +
		"nothing was enqueued. If it were enqueued now: without limits the starts are unknown\n" + unserved
	if got.stdout = elapsed(got.stdout); got != (outcome{stdout: want, stderr: "enqueue batch: " + noPolicy}) {
		t.Errorf("got  %+v\nwant %s", got, want)
	}
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
	denied, client := private(t)
	client.Do(t.Context(), "acl", "setuser", "default", "-hmget")
	got = program(t, denied, tasks, "batch", "-dry-run", "-limits", limits, "-")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "refuses its user a command or a key that is needed\ntry: ") {
		t.Errorf("without a right: %+v", got)
	}
}

// "-starts prints the expected start of each line, and the drawing", and a dry run says which lines expire before they start.
func TestForecastOfStarts(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := tasksOf("payments/acme", 300) + // half a minute of them
		fmt.Sprintf(`{"type":"t","id":"late","scope":"payments/acme","deadline":%q}`+"\n", time.Now().Add(25*time.Second).Format(time.RFC3339Nano)) +
		`{"type":"t","id":"patient","scope":"payments/acme","max_wait":"1h"}` + "\n" +
		`{"type":"t","id":"impatient","scope":"payments/acme","max_wait":"1s"}` + "\n"
	got := program(t, url, tasks, "batch", "-dry-run", "-limits", limits, "-")
	for _, want := range []string{"line 301: late starts at ", ", after its deadline: it would never start\n", "line 303: impatient starts at ", ", after its max_wait\n", "\n2 would expire before they start\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "patient starts at") && strings.Contains(got.stdout, "line 302") || strings.Contains(got.stdout, "expected starts in each") {
		t.Errorf("got\n%s", got.stdout)
	}
	got = program(t, url, tasks, "batch", "-dry-run", "-starts", "-limits", limits, "-")
	if n := strings.Count(got.stdout, " starts at 20"); n != 303 || !strings.Contains(got.stdout, "expected starts in each 5s:\n") {
		t.Errorf("%d starts in\n%s", n, got.stdout)
	}
	got = program(t, url, tasks, "batch", "-dry-run", "-json", "-limits", limits, "-")
	if !strings.Contains(got.stdout, `"expires":"deadline"`) || !strings.Contains(got.stdout, `"expires":"max_wait"`) || !strings.Contains(got.stdout, `"expiring":2`) {
		t.Errorf("got\n%s", got.stdout)
	}
	if got = program(t, url, `{"type":"t","scope":"payments/acme"}`+"\n", "batch", "-dry-run", "-starts", "-limits", limits, "-"); !strings.HasPrefix(got.stdout, "line 1: starts at ") {
		t.Errorf("without an id: %s", got.stdout)
	}
	if got = program(t, url, "", "batch", "-starts", "-"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "-starts is for -dry-run") {
		t.Errorf("got %+v", got)
	}
}

// TestForecastOfRuns holds that a dry run says between when tasks start that wait for runs to end, by how long runs took; and
// why it does not know where none has ended.
func TestForecastOfRuns(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", "limits: {api: {rules: [{name: parallel, algorithm: concurrency, limit: 2}]}}")
	ask := func(args ...string) string {
		got := program(t, url, tasksOf("api", 4), append([]string{"batch", "-dry-run", "-limits", limits}, args...)...)
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Fatalf("%+v", got)
		}
		return got.stdout
	}
	for _, want := range []string{
		"line 3: api2 starts at an unknown time: it waits for a run to end under rule parallel of api, and none has ended lately\n",
		"at the earliest; the starts of 2 are unknown\nline 3 has no known start: it waits for a run",
	} {
		if got := ask("-starts", "-"); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	must(t, rdb.Set(t.Context(), "hw:{api}:t::parallel", "100 60000000 0", 0).Err())
	got := ask("-starts", "-")
	if !strings.Contains(got, "line 4: api3 starts about at ") || !strings.Contains(got, "done at about ") || !strings.Contains(got, ", between ") {
		t.Errorf("no ranges in\n%s", got)
	}
	now := time.Now()
	for line := range strings.Lines(ask("-json", "-")) {
		var one struct {
			Line                 int
			Start, Reason, Rule  string
			From                 string `json:"start_from"`
			To                   string `json:"start_to"`
			DoneFrom             string `json:"done_from"`
			DoneTo               string `json:"done_to"`
			RuleScope, BoundRule string
		}
		must(t, json.Unmarshal([]byte(line), &one))
		switch one.Line {
		case 0:
			if one.DoneFrom == "" || one.DoneTo <= one.DoneFrom {
				t.Errorf("the summary has no range: %s", line)
			}
		case 1, 2:
			if one.Reason != "" || one.From != "" {
				t.Errorf("a place is free: %s", line)
			}
		default:
			to, err := time.Parse(time.RFC3339, one.To)
			if err != nil || one.From >= one.Start || one.Start >= one.To || to.Before(now.Add(time.Minute)) || one.Reason != "run" || one.Rule != "parallel" {
				t.Errorf("it waits for a run of a minute: %s", line)
			}
		}
	}
}

const someSchedules = `schedules:
  report:
    cron: "30 2 * * *"
    timezone: America/Los_Angeles
    jitter: 5m
    task: {type: http, scope: payments/acme, http: {url: "https://api.example.com/?a=1&b=2"}}
  hourly:
    cron: "@hourly"
    catch_up: none
    task: {type: tidy, scope: p, payload: {days: 3}}
`

// The next runs, over the night in which 2:30 does not exist. No Redis is there.
func TestSchedules(t *testing.T) {
	t.Parallel()
	path := file(t, "schedules.yaml", someSchedules)
	args := []string{"schedules", "-n", "2", "-from", "2026-03-07T12:00:00Z"}
	text := program(t, "redis://127.0.0.1:1", "", append(args, path)...)
	if text.code != cli.ExitOK || text.stderr != "" {
		t.Errorf("%+v", text)
	}
	golden(t, "schedules.golden", text.stdout)
	object := program(t, "redis://127.0.0.1:1", "", append(args, "-json", path)...)
	if object.code != cli.ExitOK || object.stderr != "" {
		t.Errorf("%+v", object)
	}
	golden(t, "schedules_json.golden", object.stdout)
	if got := program(t, "", someSchedules, append(args, "-json", "-")...); got != object {
		t.Errorf("from standard input: %+v", got)
	}
	for line := range strings.Lines(object.stdout) {
		var run runJSON
		must(t, json.Unmarshal([]byte(line), &run))
		if task, err := queue.ParseLine(run.Task); err != nil || !strings.HasPrefix(task.ID, "schedule:"+run.Schedule+":") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
