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

// starts reads what -json printed: the starts of the lines that have one, and the last object.
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

// A batch prints the start of each task, the last as done_at, and the rule that binds. A dry run before it prints the same, and
// does nothing.
func TestBatchTellsWhenItIsDone(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := file(t, "tasks.ndjson", tasksOf("payments/acme", 31)+tasksOf("payments/b", 5))
	// Some tasks wait already: the forecast does not know tasks that go straight to a queue.
	began := time.Now()
	first := strings.ReplaceAll(tasksOf("payments/acme", 5), `"id":"`, `"id":"first-`)
	program(t, url, first, "batch", "-limits", limits, "-").says(t, cli.ExitOK, "5 enqueued")
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
	told, forecast := starts(t, dry.stdout)
	was, end := starts(t, batch.stdout)
	if len(told) != 36 || len(was) != 36 || batch.code != cli.ExitOK || batch.stderr != "" {
		t.Fatalf("%d and %d starts in\n%+v\n%+v", len(told), len(was), dry, batch)
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

// A dry run prints bad lines as enqueuing would, and says when the batch would be done.
func TestForecastForPeople(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := tasksOf("payments/acme", 20) + tasksOf("payments/acme", 1) + "no task\n" + tasksOf("search", 1)
	paused := file(t, "paused.yaml", tenantsYAML+"  stopped: {paused: true}\n  later: {paused: true, paused_until: 2200-01-31T12:00:00.5Z}\n")
	when := time.Date(2200, 1, 31, 12, 0, 1, 0, time.UTC).Local().Format(time.DateTime)
	const three = "3 lines: 3 valid, 0 duplicate, 0 invalid in N\nnothing was enqueued. If it were enqueued now: "
	for _, tt := range []struct {
		limits, tasks string
		code          int
		want          string
	}{
		{limits, tasks, cli.ExitFailed, "line 21: duplicate: id payments-acme0 of queue default is on a line before\n" +
			"line 22: invalid: not JSON at byte 2: invalid character 'o' in literal null (expecting 'u')\n" +
			"line 23: invalid: scope: \"search\" meets no rule and the policy denies such scopes; correct the scope, give it a rule, " +
			"or write unmatched: allow\n" +
			"23 lines: 20 valid, 1 duplicate, 2 invalid in N\n" +
			"nothing was enqueued. If it were enqueued now: done at T, bound by payments/acme tenant\n"},
		{limits, tasksOf("payments/paused", 3), cli.ExitOK, three + "done at an unknown time: the starts of 3 are unknown\n" +
			"line 1 has no known start: rule tenant of payments/paused has limit 0\n"},
		{paused, tasksOf("stopped/a", 3), cli.ExitOK, three + "done at an unknown time: the starts of 3 are unknown\nstopped is paused\n"},
		{paused, tasksOf("later", 3), cli.ExitOK, three + "done at T, bound by the pause of later\nlater is paused until " + when + "\n"},
		{"", tasksOf("a", 3), cli.ExitOK, three + "without limits the starts are unknown\n"},
	} {
		want := outcome{code: tt.code, stdout: tt.want + "no live worker serves queue default: its tasks start when one does\n"}
		if tt.limits == "" {
			want.stderr = "enqueue batch: " + noPolicy
		}
		got := program(t, url, tt.tasks, "batch", "-dry-run", "-limits", tt.limits, "-")
		if got.stdout = elapsed(got.stdout); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
	denied, client := private(t)
	client.Do(t.Context(), "acl", "setuser", "default", "-hmget")
	got := program(t, denied, tasks, "batch", "-dry-run", "-limits", limits, "-")
	got.says(t, cli.ExitFailed, "refuses its user a command or a key that is needed\ntry: ")
}

// "-starts prints the expected start of each line", and a dry run says which lines expire before they start.
func TestForecastOfStarts(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	limits := file(t, "limits.yaml", tenantsYAML)
	tasks := tasksOf("payments/acme", 300) + // half a minute of them
		fmt.Sprintf(`{"type":"t","id":"late","scope":"payments/acme","deadline":%q}`+"\n", time.Now().Add(25*time.Second).Format(time.RFC3339Nano)) +
		`{"type":"t","id":"patient","scope":"payments/acme","max_wait":"1h"}` + "\n" +
		`{"type":"t","id":"impatient","scope":"payments/acme","max_wait":"1s"}` + "\n"
	ask := func(tasks string, flags ...string) outcome {
		return program(t, url, tasks, append(append([]string{"batch", "-dry-run", "-limits", limits}, flags...), "-")...)
	}
	got := ask(tasks)
	got.says(t, cli.ExitOK, "line 301: late starts at ", ", after its deadline: it would never start\n", "line 303: impatient starts at ",
		", after its max_wait\n", "\n2 would expire before they start\n")
	if strings.Contains(got.stdout, "line 302") {
		t.Errorf("got\n%s", got.stdout)
	}
	got = ask(tasks, "-starts")
	if n := strings.Count(got.stdout, " starts at 20"); n != 303 {
		t.Errorf("%d starts in\n%s", n, got.stdout)
	}
	ask(tasks, "-json").says(t, cli.ExitOK, `"expires":"deadline"`, `"expires":"max_wait"`, `"expiring":2`)
	ask(`{"type":"t","scope":"payments/acme"}`+"\n", "-starts").says(t, cli.ExitOK, "line 1: starts at ") // without an id
	program(t, url, "", "batch", "-starts", "-").says(t, cli.ExitUsage, "-starts is for -dry-run")
}

// For tasks that wait for runs to end, a dry run prints a range of starts by how long runs took, or that none has ended.
func TestForecastOfRuns(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	limits := file(t, "limits.yaml", "limits: {api: {rules: [{name: parallel, algorithm: concurrency, limit: 2}]}}")
	ask := func(flag string) outcome {
		return program(t, url, tasksOf("api", 4), "batch", "-dry-run", "-limits", limits, flag, "-")
	}
	ask("-starts").says(t, cli.ExitOK,
		"line 3: api2 starts at an unknown time: it waits for a run to end under rule parallel of api, and none has ended lately\n",
		"at the earliest; the starts of 2 are unknown\nline 3 has no known start: it waits for a run")
	must(t, rdb.Set(t.Context(), "hw:{api}:t::parallel", "100 60000000 0", 0).Err())
	ask("-starts").says(t, cli.ExitOK, "line 4: api3 starts about at ", "done at about ", ", between ")
	got := ask("-json").stdout
	for want, times := range map[string]int{
		`"reason":"run","rule":"parallel","rule_scope":"api"`: 2, `"start_from":"`: 2, `"start_to":"`: 2, `"done_from":"`: 1, `"done_to":"`: 1,
	} {
		if strings.Count(got, want) != times {
			t.Errorf("not %d times %s in\n%s", times, want, got)
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
	golden(t, "schedules.golden", text.stdout)
	object := program(t, "redis://127.0.0.1:1", "", append(args, "-json", path)...)
	golden(t, "schedules_json.golden", object.stdout)
	if text != (outcome{stdout: text.stdout}) || object != (outcome{stdout: object.stdout}) {
		t.Errorf("%+v, %+v", text, object)
	}
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
