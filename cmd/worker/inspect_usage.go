package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	usages "github.com/headway-go/headway/throttle/usage"
)

// inspectUsageUsage is what "worker inspect usage -h" prints;
// testdata/inspect_usage.golden holds the same text.
const inspectUsageUsage = `Usage: worker inspect usage SCOPE [flags]

Shows who spent from SCOPE, and from all scopes below it: applications, queues
and task types, with their units, their tasks and the time of the last one. The
largest spenders come first. A scope has 40 spenders in each slot of time. The
sum of all others is the line "others". APP ran the tasks. ENQUEUED BY enqueued
them, if the tasks name it, as those of enqueue -app do.

For tasks that cost by unit the units are requests. Each other unit, such as
tokens, has a column of its own: the estimates, corrected by what handlers
settled.

For each shadow rule of SCOPE itself it shows how many tasks started, and how
many of them would have waited.

Workers record a task when it starts. It is shown within ten seconds. A worker
with -usage=false records nothing. Requests that Go programs make without a task
have no queue and no type.

Flags:
  -since DURATION   how far to look back, at most 31d. Default: 1h. The count
                    begins with a slot of time: up to 5 minutes earlier, 2
                    hours if DURATION is more than an hour, and a day, by UTC,
                    if it is more than a day
  -by WHAT          day: a line for each day, by UTC, instead of who spent;
                    day,spender: who spent on each day
  -redis URL        where it is recorded. Default: REDIS_URL from the
                    environment, else the embedded server of a worker on
                    127.0.0.1:6390
  -json             print one object for each spender, and one for all
  -h                print this

Exit codes: 0 done, also if no task has spent, 1 something failed, 2 bad usage,
130 interrupted.

Examples:
  worker inspect usage payments
  worker inspect usage payments/acme -since 24h -json
  worker inspect usage payments/acme -since 31d -by day
`

const inspectUsageHelp = "worker inspect usage -h"

// spenderReport is what "worker inspect usage -json" prints of each who spent, and
// usageReport of all; docs/json.md has their fields.
type spenderReport struct {
	Day   string `json:"day,omitempty"`
	App   string `json:"app"`
	Queue string `json:"queue"`
	Type  string `json:"type"`
	Units int64  `json:"units"`
	Tasks int64  `json:"tasks"`
	Last  string `json:"last"`

	EnqueuedBy string           `json:"enqueued_by,omitempty"`
	ByUnit     map[string]int64 `json:"by_unit,omitempty"`
}

type usageReport struct {
	Summary    bool   `json:"summary"`
	Scope      string `json:"scope"`
	From       string `json:"from"`
	To         string `json:"to"`
	Units      int64  `json:"units"`
	Tasks      int64  `json:"tasks"`
	OtherUnits int64  `json:"other_units"`
	OtherTasks int64  `json:"other_tasks"`

	ByUnit      map[string]int64 `json:"by_unit,omitempty"`
	OtherByUnit map[string]int64 `json:"other_by_unit,omitempty"`
	Shadows     []shadowUse      `json:"shadows,omitempty"`
}

// shadowUse is what a shadow rule would have done; docs/json.md has its fields.
type shadowUse struct {
	Rule   string `json:"rule"`
	Starts int64  `json:"starts"`
	Waits  int64  `json:"would_have_waited"`
}

// usageCommand is one run of "worker inspect usage".
type usageCommand struct {
	url   string
	since time.Duration
	json  bool

	days, spenders bool // -by: a line for each day, and for each who spent on it
}

// newInspectUsage returns the command "worker inspect usage", and what it reads.
func newInspectUsage() (*cli.Command, *usageCommand) {
	c, u := cli.NewCommand(prog+" inspect usage", inspectUsageUsage), &usageCommand{since: time.Hour}
	c.Mixed, c.About = true, "show who spent from a scope"
	c.Flags.StringVar(&u.url, "redis", "", "")
	c.Flags.BoolVar(&u.json, "json", false, "")
	c.Flags.Func("since", "", func(text string) (err error) {
		u.since, err = queue.ParseDuration(text)
		return err
	})
	c.Flags.Func("by", "", func(text string) error {
		u.days, u.spenders = text == "day" || text == "day,spender", text == "day,spender"
		if !u.days {
			return errors.New("write day, or day,spender")
		}
		return nil
	})
	return c, u
}

// runInspectUsage is the program "worker inspect usage".
func runInspectUsage(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, u := newInspectUsage()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	if err := checkUsage(words, u.since); err != nil {
		c.Fail(stderr, prog, err)
		return cli.ExitUsage
	}
	reports, err := u.read(ctx, words[0])
	if err == nil {
		err = u.print(stdout, reports)
	}
	if err != nil {
		if ctx.Err() != nil {
			return cli.ExitInterrupted
		}
		c.Fail(stderr, prog, err)
		return cli.Code(err)
	}
	return cli.ExitOK
}

// checkUsage refuses a question that the stored counts cannot answer.
func checkUsage(words []string, since time.Duration) error {
	switch {
	case len(words) == 0 || words[0] == "":
		return cli.Errorf(inspectUsageHelp, "no scope given")
	case len(words) > 1:
		return cli.Errorf(inspectUsageHelp, "one scope at a time, and %q is a second one; quote a name that has spaces", words[1])
	case since <= 0 || since > usages.Longest:
		return cli.Errorf("-since 1h", "-since %s is not above 0 and at most 31 days, which is how long usage is kept", since)
	}
	if _, err := policy.ParseScope(words[0]); err != nil {
		return &cli.Error{What: plainly(err), Try: inspectUsageHelp, Err: err}
	}
	return nil
}

// read returns one report, or one for each day.
func (u *usageCommand) read(ctx context.Context, scope string) (reports []usages.Report, err error) {
	url := cmp.Or(u.url, cli.EmbeddedURL)
	rdb, err := cli.OpenRedis(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	if u.days {
		reports, err = usages.ReadDays(ctx, rdb, usages.Config{}, scope, u.since)
	} else {
		reports = make([]usages.Report, 1)
		reports[0], err = usages.Read(ctx, rdb, usages.Config{}, scope, u.since)
	}
	if err != nil {
		return nil, explain(ctx, err, url)
	}
	return reports, nil
}

func (u *usageCommand) print(out io.Writer, reports []usages.Report) (err error) {
	var b bytes.Buffer
	switch {
	case u.days && u.json:
		err = dayObjects(&b, reports, u.spenders)
	case u.days:
		err = dayTable(&b, reports, u.spenders)
	case u.json:
		err = usageObjects(&b, reports[0])
	default:
		err = usageTable(&b, reports[0])
	}
	if err == nil {
		_, err = out.Write(cli.EscapeJSON(b.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("cannot write the result: %w", err)
	}
	return nil
}

func usageObjects(out io.Writer, r usages.Report) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, s := range r.Spenders {
		if err := enc.Encode(spenderObject(s)); err != nil {
			return err
		}
	}
	return enc.Encode(summaryObject(r))
}

func spenderObject(s usages.Spender) spenderReport {
	return spenderReport{"", s.App, s.Queue, s.Type, s.Units, s.Tasks, stamp(s.Last), s.EnqueuedBy, s.ByUnit}
}

func summaryObject(r usages.Report) usageReport {
	var shadows []shadowUse
	for _, s := range r.Shadows {
		shadows = append(shadows, shadowUse(s))
	}
	return usageReport{
		Summary: true, Scope: r.Scope.String(), From: stamp(r.From), To: stamp(r.To),
		Units: r.All.Units, Tasks: r.All.Tasks, OtherUnits: r.Other.Units, OtherTasks: r.Other.Tasks,
		ByUnit: r.ByUnit, OtherByUnit: r.OtherByUnit, Shadows: shadows,
	}
}

func usageTable(out io.Writer, r usages.Report) error {
	scope, since := cli.Quote(r.Scope.String()), stamp(r.From)
	for _, s := range r.Shadows {
		_, _ = fmt.Fprintf(out, "shadow rule %s of %s: of %d starts since %s %d would have waited\n", cli.Quote(s.Rule), scope, s.Starts, since, s.Waits)
	}
	if r.All.Tasks == 0 {
		_, err := fmt.Fprintf(out, "no spending from %s is recorded since %s\n", scope, since)
		return err
	}
	kinds, all := slices.Sorted(maps.Keys(r.ByUnit)), fmt.Sprintf("%d units", r.All.Units)
	for _, unit := range kinds {
		all += fmt.Sprintf(", %d %s", r.ByUnit[unit], cli.Quote(unit))
	}
	_, _ = fmt.Fprintf(out, "%s in %d tasks spent from %s since %s\n\n", all, r.All.Tasks, scope, since)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(columns ...string) { _, _ = fmt.Fprintln(w, strings.Join(columns, "\t")) }
	head := []string{"UNITS"}
	for _, unit := range kinds {
		head = append(head, cli.Quote(strings.ToUpper(unit)))
	}
	row(append(append(head, "TASKS"), spenderHead(r)...)...)
	for _, s := range r.Spenders {
		row(append(sums(s.Sum, kinds, s.ByUnit), spenderColumns(s)...)...)
	}
	if r.Other != (usages.Sum{}) || r.OtherByUnit != nil {
		row(append(sums(r.Other, kinds, r.OtherByUnit), "others")...)
	}
	return w.Flush()
}

// spenderHead names the columns of who spent, the last one only where it is known of any.
func spenderHead(reports ...usages.Report) []string {
	head := []string{"APP", "QUEUE", "TYPE", "LAST"}
	for _, r := range reports {
		if slices.ContainsFunc(r.Spenders, func(s usages.Spender) bool { return s.EnqueuedBy != "" }) {
			return append(head, "ENQUEUED BY")
		}
	}
	return head
}

func spenderColumns(s usages.Spender) []string {
	columns := []string{cli.Quote(s.App), cli.Quote(s.Queue), cli.Quote(s.Type), stamp(s.Last)}
	if s.EnqueuedBy != "" {
		columns = append(columns, cli.Quote(s.EnqueuedBy))
	}
	return columns
}

// sums are the columns of what was spent.
func sums(all usages.Sum, kinds []string, byUnit map[string]int64) []string {
	columns := []string{strconv.FormatInt(all.Units, 10)}
	for _, unit := range kinds {
		columns = append(columns, strconv.FormatInt(byUnit[unit], 10))
	}
	return append(columns, strconv.FormatInt(all.Tasks, 10))
}
