package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue/schedule"
)

const (
	maxRuns      = 10_000
	maxSchedules = 8 << 20 // bytes of standard input, more than a file may have

	schedulesLong = `Checks a file of recurring tasks and shows the next runs of each. It enqueues nothing and
needs no Redis. worker -schedules FILE enqueues them. - is standard input.

A schedule:
  schedules:
    nightly-report:                 # its name, 1 to 128 bytes
      cron: "0 6 * * 1-5"           # minute, hour, day of month, month, day of week;
                                    # or @yearly, @monthly, @weekly, @daily, @hourly
      timezone: America/Los_Angeles # (default UTC)
      jitter: 5m                    # delay each run by up to 5m, in whole seconds (default 0)
      catch_up: last                # missed runs: none, last, all (default last)
      task:                         # as a line of enqueue batch, without id, delay
        type: http                  # and deadline
        scope: payments/acme
        http: {method: POST, url: "https://api.example.com/report"}

When clocks change, they skip an hour or show one twice. A schedule that names its hours
still runs once a day. One whose hour begins with * runs each real hour.`
)

// schedulesCommand is one run of enqueue schedules.
type schedulesCommand struct {
	n       int
	from    time.Time
	json    bool
	methods []string
}

func newSchedules() *cobra.Command {
	s := &schedulesCommand{}
	c := &cobra.Command{
		Use: "schedules FILE|-", Short: "Show when recurring tasks come due", Long: schedulesLong, Args: cli.Args(1, 1), RunE: s.run,
		Example: "  enqueue schedules schedules.yaml\n  enqueue schedules -n 3 -from 2026-03-07T00:00:00Z -json schedules.yaml",
	}
	c.Flags().IntVar(&s.n, "n", 5, "show `N` runs of each schedule")
	cli.TimeVar(c.Flags(), &s.from, "from", "runs after this `TIME`, such as 2030-01-31T12:00:00Z. Default: now")
	c.Flags().BoolVar(&s.json, "json", false, "print an object of JSON for each run; docs/json.md has its fields")
	methodsFlag(c, &s.methods)
	return c
}

func (s *schedulesCommand) run(c *cobra.Command, words []string) error {
	if s.n < 1 || s.n > maxRuns {
		return cli.Usage(cli.Errorf("-n 5", "-n %d is not from 1 to %d", s.n, maxRuns))
	}
	if err := checkMethods(s.methods); err != nil {
		return cli.Usage(err)
	}
	if s.from.IsZero() {
		s.from = time.Now()
	}
	file, err := loadSchedules(words[0], c.InOrStdin())
	if err == nil {
		err = file.CheckMethods(s.methods)
	}
	if err != nil {
		return explainSchedules(err)
	}
	out := cli.Output{W: c.OutOrStdout(), JSON: s.json}
	for _, each := range file.Schedules {
		if !s.json {
			jitter := ""
			if each.Jitter > 0 {
				jitter = fmt.Sprintf(", jitter %s", each.Jitter)
			}
			out.Text(fmt.Sprintf("%s: %s %s, catch_up %s%s", cli.Quote(each.Name), each.Cron, each.Timezone, each.CatchUp, jitter))
		}
		run := each.Next(s.from)
		for n := 0; n < s.n && !run.IsZero(); n++ {
			object, err := runObject(each, run)
			if err != nil {
				return err
			}
			out.Print(object, runText(each, run))
			run = each.Next(run)
		}
	}
	return nil
}

// loadSchedules reads the file at path, or standard input for "-".
func loadSchedules(path string, stdin io.Reader) (*schedule.File, error) {
	if path != "-" {
		return schedule.Load(path)
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxSchedules))
	if err != nil {
		return nil, err
	}
	return schedule.Parse("standard input", data)
}

func explainSchedules(err error) error {
	if errors.As(err, new(*schedule.FileError)) {
		return &cli.Error{What: err.Error(), Err: err}
	}
	return explainFile("the schedules", err)
}

// runText says when a run is, in its zone and in UTC, and when its task may start.
func runText(s *schedule.Schedule, run time.Time) string {
	text := fmt.Sprintf("  %s   %s", run.Format("Mon 2006-01-02 15:04:05 -07:00"), run.UTC().Format(time.RFC3339))
	if start := s.Start(run); !start.Equal(run) {
		text += fmt.Sprintf("   put off by %s", start.Sub(run))
	}
	return text
}

// runJSON is a run's line under -json; docs/json.md has its fields.
type runJSON struct {
	Schedule string          `json:"schedule"`
	At       string          `json:"at"`
	UTC      string          `json:"utc"`
	Jittered string          `json:"jittered"`
	Task     json.RawMessage `json:"task"`
}

func runObject(s *schedule.Schedule, run time.Time) (runJSON, error) {
	task := s.TaskFor(run)
	task.Delay = 0 // jittered says it
	line, err := task.AppendLine(nil)
	return runJSON{
		Schedule: s.Name, At: run.Format(time.RFC3339), UTC: run.UTC().Format(time.RFC3339),
		Jittered: s.Start(run).UTC().Format(time.RFC3339), Task: line,
	}, err
}
