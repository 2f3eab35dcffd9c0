package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
)

const inspectUsageLong = `Shows which applications, queues and task types spent from SCOPE, and from all scopes
below it, with their units, their tasks and the time of the last one. The largest
spenders come first. A scope has 40 spenders in each slot of time. The sum of all others is the
line "others". APP ran the tasks. ENQUEUED BY enqueued them, if the tasks name it, as
those of enqueue -app do. SCOPE can be a member of a pool, such as github/@alice.

For tasks that cost by unit the units are requests. Each other unit, such as tokens, has
a column of its own: the estimates, corrected by what handlers settled.

For each shadow rule of SCOPE itself it shows how many tasks started, and how many of
them would have waited.

Workers record a task when it starts. It is shown within ten seconds. A worker with
-usage=false records nothing. Requests that Go programs make without a task have no
queue and no type.`

// spenderReport is what "worker inspect usage -json" prints of each spender, and usageReport of all;
// docs/json.md has their fields.
type spenderReport struct {
	Day        string           `json:"day,omitempty"`
	App        string           `json:"app"`
	Queue      string           `json:"queue"`
	Type       string           `json:"type"`
	Units      int64            `json:"units"`
	Tasks      int64            `json:"tasks"`
	Last       string           `json:"last"`
	EnqueuedBy string           `json:"enqueued_by,omitempty"`
	ByUnit     map[string]int64 `json:"by_unit,omitempty"`
}

type usageReport struct {
	Summary bool   `json:"summary"`
	Scope   string `json:"scope"`
	From    string `json:"from"`
	To      string `json:"to"`
	sumReport
	OtherByUnit map[string]int64 `json:"other_by_unit,omitempty"`
	Shadows     []shadowUse      `json:"shadows,omitempty"`
}

// dayReport is what -by day prints of each day.
type dayReport struct {
	Day string `json:"day"`
	sumReport
}

// sumReport is the spending of all spenders, and the part of it that is not listed by spender.
type sumReport struct {
	Units      int64            `json:"units"`
	Tasks      int64            `json:"tasks"`
	OtherUnits int64            `json:"other_units"`
	OtherTasks int64            `json:"other_tasks"`
	ByUnit     map[string]int64 `json:"by_unit,omitempty"`
}

func sumOf(r usage.Report) sumReport {
	return sumReport{r.All.Units, r.All.Tasks, r.Other.Units, r.Other.Tasks, r.ByUnit}
}

// shadowUse is what a shadow rule would have done.
type shadowUse struct {
	Rule   string `json:"rule"`
	Starts int64  `json:"starts"`
	Waits  int64  `json:"would_have_waited"`
}

// usageCommand is one run of "worker inspect usage".
type usageCommand struct {
	session
	since time.Duration
	by    string
}

func newInspectUsage() *cobra.Command {
	u := &usageCommand{}
	c := &cobra.Command{
		Use: "usage SCOPE", Short: "Show which applications spent from SCOPE", Long: inspectUsageLong, Args: cli.Args(1, 1),
		Example: "  worker inspect usage payments/acme -since 24h -json\n  worker inspect usage payments/acme -since 31d -by day",
		RunE: func(c *cobra.Command, words []string) error {
			if err := u.check(words[0]); err != nil {
				return cli.Usage(err)
			}
			return u.online(u.run)(c, words)
		},
	}
	cli.DurationVar(c.Flags(), &u.since, "since", time.Hour, "how far to look back, at most 31d. The count begins with a slot of time: up to 5 minutes earlier, "+
		"2 hours if it is more than an hour, and a day, by UTC, if it is more than a day")
	cli.ChoiceVar(c, &u.by, "by", "", "`WHAT` has a line: day (each day, by UTC, instead of each spender), or day,spender (each spender on each day)", "day", "day,spender")
	u.flags(c)
	return c
}

// check refuses a question that the stored counts cannot answer.
func (u *usageCommand) check(scope string) error {
	if u.since <= 0 || u.since > usage.Longest {
		return cli.Errorf("-since 1h", "-since %s is not above 0 and at most 31 days, which is how long usage is kept", u.since)
	}
	if !slices.Contains([]string{"", "day", "day,spender"}, u.by) {
		return cli.Errorf("-by day, or -by day,spender", "-by %q is unknown", u.by)
	}
	if _, err := policy.ParseScope(scope); err != nil {
		return &cli.Error{What: plainly(err), Try: "worker inspect usage -h", Err: err}
	}
	return nil
}

func (u *usageCommand) run(ctx context.Context, words []string) (err error) {
	reports := make([]usage.Report, 1)
	if u.by == "" {
		reports[0], err = usage.Read(ctx, u.rdb, usage.Config{}, words[0], u.since)
	} else {
		reports, err = usage.ReadDays(ctx, u.rdb, usage.Config{}, words[0], u.since)
	}
	if err != nil {
		return err
	}
	if u.json {
		u.printObjects(reports)
	} else {
		u.printTable(reports)
	}
	return nil
}

func dayOf(r usage.Report) string { return r.From.UTC().Format(time.DateOnly) }

// printObjects prints an object for each spender, for each day with -by day, and for the sum.
func (u *usageCommand) printObjects(reports []usage.Report) {
	for _, r := range reports {
		day := ""
		if u.by != "" {
			day = dayOf(r)
		}
		if u.by != "day" {
			for _, s := range r.Spenders {
				u.out.Print(spenderReport{day, s.App, s.Queue, s.Type, s.Units, s.Tasks, stamp(s.Last), s.EnqueuedBy, s.ByUnit}, "")
			}
		}
		if u.by != "" {
			u.out.Print(dayReport{day, sumOf(r)}, "")
		}
	}
	all := together(reports)
	sum := usageReport{Summary: true, Scope: all.Scope.String(), From: stamp(all.From), To: stamp(all.To), sumReport: sumOf(all), OtherByUnit: all.OtherByUnit}
	for _, s := range all.Shadows {
		sum.Shadows = append(sum.Shadows, shadowUse(s))
	}
	u.out.Print(sum, "")
}

// printTable prints a line for each spender, or for each day, after the sums.
func (u *usageCommand) printTable(reports []usage.Report) {
	all := together(reports)
	scope, since := cli.Quote(all.Scope.String()), stamp(all.From)
	for _, s := range all.Shadows {
		u.out.Text(fmt.Sprintf("shadow rule %s of %s: of %d starts since %s %d would have waited", cli.Quote(s.Rule), scope, s.Starts, since, s.Waits))
	}
	if all.All.Tasks == 0 {
		u.out.Text(fmt.Sprintf("no spending from %s is recorded since %s", scope, since))
		return
	}
	units, sum := slices.Sorted(maps.Keys(all.ByUnit)), fmt.Sprintf("%d units", all.All.Units)
	head := []string{"UNITS"}
	for _, unit := range units {
		sum += ", " + cli.Quote(policy.Amount(all.ByUnit[unit], unit))
		head = append(head, cli.Quote(strings.ToUpper(unit)))
	}
	u.out.Text(fmt.Sprintf("%s in %d tasks spent from %s since %s\n", sum, all.All.Tasks, scope, since))
	head = append(head, "TASKS")
	if u.by != "" {
		head = slices.Insert(head, 0, "DAY")
	}
	if u.by != "day" {
		head = append(head, "APP", "QUEUE", "TYPE", "LAST", "ENQUEUED BY")
	}
	var rows [][]string
	for _, r := range reports {
		add := func(s usage.Sum, byUnit map[string]int64, spender ...string) {
			row := []string{strconv.FormatInt(s.Units, 10)}
			for _, unit := range units {
				row = append(row, policy.Number(byUnit[unit], unit))
			}
			row = append(append(row, strconv.FormatInt(s.Tasks, 10)), spender...)
			if u.by != "" {
				row = slices.Insert(row, 0, dayOf(r))
			}
			rows = append(rows, row)
		}
		if u.by == "day" || u.by != "" && r.All.Tasks == 0 {
			add(r.All, r.ByUnit)
			continue
		}
		for _, s := range r.Spenders {
			spender := []string{cli.Quote(s.App), cli.Quote(s.Queue), cli.Quote(s.Type), stamp(s.Last)}
			if s.EnqueuedBy != "" {
				spender = append(spender, cli.Quote(s.EnqueuedBy))
			}
			add(s.Sum, s.ByUnit, spender...)
		}
		if r.Other != (usage.Sum{}) || r.OtherByUnit != nil {
			add(r.Other, r.OtherByUnit, "others")
		}
	}
	u.out.Table(head, rows)
}

// together returns the sum of at least one report, without the spenders.
func together(reports []usage.Report) usage.Report {
	all := usage.Report{Scope: reports[0].Scope, From: reports[0].From, To: reports[len(reports)-1].To, ByUnit: map[string]int64{}, OtherByUnit: map[string]int64{}}
	shadows := map[string]usage.Shadow{}
	for _, r := range reports {
		all.All.Units, all.All.Tasks = all.All.Units+r.All.Units, all.All.Tasks+r.All.Tasks
		all.Other.Units, all.Other.Tasks = all.Other.Units+r.Other.Units, all.Other.Tasks+r.Other.Tasks
		for unit, n := range r.ByUnit {
			all.ByUnit[unit] += n
		}
		for unit, n := range r.OtherByUnit {
			all.OtherByUnit[unit] += n
		}
		for _, s := range r.Shadows {
			sum := shadows[s.Rule]
			shadows[s.Rule] = usage.Shadow{Rule: s.Rule, Starts: sum.Starts + s.Starts, Waits: sum.Waits + s.Waits}
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(shadows)) {
		all.Shadows = append(all.Shadows, shadows[rule])
	}
	return all
}
