package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	usages "github.com/headway-go/headway/throttle/usage"
)

// dayReport is what "worker inspect usage -by day -json" prints of each day; docs/json.md has its fields.
type dayReport struct {
	Day        string `json:"day"`
	Units      int64  `json:"units"`
	Tasks      int64  `json:"tasks"`
	OtherUnits int64  `json:"other_units"`
	OtherTasks int64  `json:"other_tasks"`

	ByUnit map[string]int64 `json:"by_unit,omitempty"`
}

// dayOf names the day of a report.
func dayOf(r usages.Report) string { return r.From.UTC().Format(time.DateOnly) }

// dayObjects prints an object for each day, before it one for each who spent on it where that is asked for, and one for all.
func dayObjects(out io.Writer, reports []usages.Report, spenders bool) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, r := range reports {
		for _, s := range r.Spenders {
			one := spenderObject(s)
			if one.Day = dayOf(r); !spenders {
				break
			}
			if err := enc.Encode(one); err != nil {
				return err
			}
		}
		if err := enc.Encode(dayReport{dayOf(r), r.All.Units, r.All.Tasks, r.Other.Units, r.Other.Tasks, r.ByUnit}); err != nil {
			return err
		}
	}
	return enc.Encode(summaryObject(together(reports)))
}

// dayTable prints a line for each day, or for each who spent on it.
func dayTable(out io.Writer, reports []usages.Report, spenders bool) error {
	all := together(reports)
	scope, kinds := cli.Quote(all.Scope.String()), slices.Sorted(maps.Keys(all.ByUnit))
	_, _ = fmt.Fprintf(out, "%d units in %d tasks spent from %s since %s, by days of UTC\n\n", all.All.Units, all.All.Tasks, scope, stamp(all.From))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(columns ...string) { _, _ = fmt.Fprintln(w, strings.Join(columns, "\t")) }
	head := []string{"DAY", "UNITS"}
	for _, unit := range kinds {
		head = append(head, cli.Quote(strings.ToUpper(unit)))
	}
	head = append(head, "TASKS")
	if spenders {
		head = append(head, spenderHead(reports...)...)
	}
	row(head...)
	for _, r := range reports {
		line := func(columns []string, more ...string) {
			row(append(append([]string{dayOf(r)}, columns...), more...)...)
		}
		if !spenders || r.All.Tasks == 0 {
			line(sums(r.All, kinds, r.ByUnit))
			continue
		}
		for _, s := range r.Spenders {
			line(sums(s.Sum, kinds, s.ByUnit), spenderColumns(s)...)
		}
		if r.Other != (usages.Sum{}) || r.OtherByUnit != nil {
			line(sums(r.Other, kinds, r.OtherByUnit), "others")
		}
	}
	return w.Flush()
}

// together adds up days, of which there is one at least, but for who spent.
func together(reports []usages.Report) usages.Report {
	all := usages.Report{Scope: reports[0].Scope, From: reports[0].From, To: reports[len(reports)-1].To, ByUnit: map[string]int64{}, OtherByUnit: map[string]int64{}}
	shadows := map[string]usages.Shadow{}
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
			shadows[s.Rule] = usages.Shadow{Rule: s.Rule, Starts: sum.Starts + s.Starts, Waits: sum.Waits + s.Waits}
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(shadows)) {
		all.Shadows = append(all.Shadows, shadows[rule])
	}
	return all
}
