package main

import (
	"encoding/json"
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
		must(t, json.Unmarshal([]byte(line), &run))
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
