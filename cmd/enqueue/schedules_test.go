package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

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
		if err := json.Unmarshal([]byte(line), &run); err != nil {
			t.Fatal(err)
		}
		if task, err := queue.ParseLine(run.Task); err != nil || !strings.HasPrefix(task.ID, "schedule:"+run.Schedule+":") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestSchedulesFromNow(t *testing.T) {
	t.Parallel()
	path := file(t, "schedules.yaml", someSchedules)
	got := program(t, "", "", "schedules", "-json", path)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var run runJSON
	if err := json.Unmarshal([]byte(lines[defaultRuns]), &run); len(lines) != 2*defaultRuns || err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	if at, err := time.Parse(time.RFC3339, run.At); err != nil || time.Until(at) > time.Hour || time.Until(at) < -time.Minute {
		t.Errorf("the next hour is %s", run.At)
	}
}

func TestSchedulesRefuses(t *testing.T) {
	t.Parallel()
	good := file(t, "good.yaml", someSchedules)
	bad := file(t, "bad.yaml", "schedules:\n  s: {cron: \"* * *\", every: 5m}\n")
	for name, tt := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"faults": {[]string{bad}, cli.ExitFailed, []string{
			"enqueue schedules: " + bad + ":2:3: schedules.s.task: task is missing",
			"enqueue schedules: " + bad + ":2:13: schedules.s.cron: has 3 of 5 fields",
			"enqueue schedules: " + bad + ":2:22: schedules.s.every: every is not a field",
		}},
		"no such file": {[]string{filepath.Join(t.TempDir(), "none.yaml")}, cli.ExitFailed, []string{"cannot read the schedules: open ", "try: check the path"}},
		"no file":      {nil, cli.ExitUsage, []string{"no FILE given", "try: enqueue schedules schedules.yaml"}},
		"two files":    {[]string{good, good}, cli.ExitUsage, []string{"one FILE at a time"}},
		"no runs":      {[]string{"-n", "0", good}, cli.ExitUsage, []string{"-n 0 is not from 1 to 10000", "try: -n 5"}},
		"a bad time":   {[]string{"-from", "tomorrow", good}, cli.ExitUsage, []string{"not an RFC 3339 time"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := program(t, "", "", append([]string{"schedules"}, tt.args...)...)
			if got.code != tt.code || got.stdout != "" {
				t.Errorf("%+v", got)
			}
			for _, want := range tt.want {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("stderr lacks %q:\n%s", want, got.stderr)
				}
			}
		})
	}
}
