package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue/schedule"
)

const (
	schedulesExample = "enqueue schedules schedules.yaml"
	defaultRuns      = 5
	maxRuns          = 10_000
	maxSchedules     = 8 << 20 // bytes of standard input, more than a file may have
)

type schedulesFlags struct {
	command *cli.Command
	set     *flag.FlagSet
	n       int
	from    time.Time
	json    bool

	allowMethods []string
}

func newSchedulesFlags(name string) *schedulesFlags {
	command := cli.NewCommand(name, usageSchedules)
	command.About, command.Files = "show when recurring tasks come due", true
	f := &schedulesFlags{command: command, set: command.Flags, from: time.Now()}
	f.set.IntVar(&f.n, "n", defaultRuns, "")
	f.set.BoolVar(&f.json, "json", false, "")
	cli.AllowMethodFlag(f.set, &f.allowMethods)
	f.set.Func("from", "", func(text string) (err error) {
		if f.from, err = time.Parse(time.RFC3339, text); err != nil {
			return errors.New("not an RFC 3339 time, such as 2030-01-31T12:00:00Z")
		}
		return nil
	})
	return f
}

// schedules shows the next runs of each schedule of a file.
func (c *command) schedules(args []string) int {
	f := newSchedulesFlags(c.name)
	c.typed = f.command
	if _, code, done := f.command.Parse(args, c.getenv, c.stdout, c.stderr); done {
		return code
	}
	if f.n < 1 || f.n > maxRuns {
		return c.usageError(cli.Errorf("-n 5", "-n %d is not from 1 to %d", f.n, maxRuns))
	}
	path, err := argument(f.set, "FILE", schedulesExample)
	if err != nil {
		return c.usageError(err)
	}
	file, err := c.loadSchedules(path)
	if err == nil {
		err = file.CheckMethods(f.allowMethods)
	}
	if err != nil {
		return c.fail(explainSchedules(err))
	}
	show := showText
	if f.json {
		show = showJSON
	}
	for _, s := range file.Schedules {
		var out bytes.Buffer
		if err := show(&out, s, f); err != nil {
			return c.fail(err)
		}
		if code := c.print(string(cli.EscapeJSON(out.Bytes()))); code != cli.ExitOK {
			return code
		}
	}
	return cli.ExitOK
}

// loadSchedules reads the file at path, or standard input for "-".
func (c *command) loadSchedules(path string) (*schedule.File, error) {
	if path != "-" {
		return schedule.Load(path)
	}
	data, err := io.ReadAll(io.LimitReader(c.stdin, maxSchedules))
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

// runs calls each with the next runs of a schedule.
func (f *schedulesFlags) runs(s *schedule.Schedule, each func(run time.Time) error) error {
	run := f.from
	for range f.n {
		if run = s.Next(run); run.IsZero() {
			return nil
		}
		if err := each(run); err != nil {
			return err
		}
	}
	return nil
}

// showText prints a schedule for people: each run in its zone, in UTC, and when
// its task may start.
func showText(out *bytes.Buffer, s *schedule.Schedule, f *schedulesFlags) error {
	fmt.Fprintf(out, "%s: %s %s, catch_up %s", cli.Quote(s.Name), cli.Escape(s.Cron), cli.Escape(s.Timezone), s.CatchUp)
	if s.Jitter > 0 {
		fmt.Fprintf(out, ", jitter %s", s.Jitter)
	}
	out.WriteByte('\n')
	return f.runs(s, func(run time.Time) error {
		fmt.Fprintf(out, "  %s   %s", run.Format("Mon 2006-01-02 15:04:05 -07:00"), run.UTC().Format(time.RFC3339))
		if start := s.Start(run); !start.Equal(run) {
			fmt.Fprintf(out, "   put off by %s", start.Sub(run))
		}
		out.WriteByte('\n')
		return nil
	})
}

// runJSON is a run's line under -json. The usage text lists its fields.
type runJSON struct {
	Schedule string          `json:"schedule"`
	At       string          `json:"at"`
	UTC      string          `json:"utc"`
	Jittered string          `json:"jittered"`
	Task     json.RawMessage `json:"task"`
}

func showJSON(out *bytes.Buffer, s *schedule.Schedule, f *schedulesFlags) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return f.runs(s, func(run time.Time) error {
		task := s.TaskFor(run)
		task.Delay = 0 // jittered says it
		line, err := task.AppendLine(nil)
		if err != nil {
			return err
		}
		return enc.Encode(runJSON{
			Schedule: s.Name, At: run.Format(time.RFC3339), UTC: run.UTC().Format(time.RFC3339),
			Jittered: s.Start(run).UTC().Format(time.RFC3339), Task: line,
		})
	})
}
