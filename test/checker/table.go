package checker

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Violations returns a sentence for each thing that is wrong; none when OK.
func (r *Report) Violations() []string {
	var says []string
	for _, row := range r.Rows {
		if row.Exceeded {
			says = append(says, row.violation())
		}
	}
	for _, scope := range r.Unmatched {
		says = append(says, fmt.Sprintf("%s meets no rule, which unmatched: deny forbids, and was called", scope))
	}
	for _, scope := range r.Paused {
		says = append(says, fmt.Sprintf("%s was called while it was paused", scope))
	}
	for _, wrong := range []struct {
		ids  []string
		what string
	}{
		{r.Lost, "never arrived with success"},
		{r.Duplicates, "arrived with success more than once"},
		{r.Unknown, "arrived and stand in no task"},
		{r.Mismatched, "arrived under another scope or cost than their task's"},
		{r.OverBudget, "arrived more often than max_retry allows"},
	} {
		if len(wrong.ids) > 0 {
			says = append(says, fmt.Sprintf("%d ids %s: %s", len(wrong.ids), wrong.what, some(wrong.ids)))
		}
	}
	return says
}

func (row Row) violation() string {
	at, units := row.WorstAt.Round(time.Microsecond), cmp.Or(row.Unit, "units")
	if row.Algorithm == concurrency {
		return fmt.Sprintf("%s %s: %d calls at once at +%v, the limit is %d", row.Scope, row.Rule, row.Judged, at, row.Limit)
	}
	if row.Algorithm == tokenBucket {
		return fmt.Sprintf("%s %s: %g %s above what burst %d and %d per %v admit; most in one %v from +%v: %d",
			row.Scope, row.Rule, *row.Excess, units, row.Burst, row.Limit, row.Per, row.Per, at, row.Worst)
	}
	if row.Algorithm == calendar {
		return fmt.Sprintf("%s %s: %d %s beyond what was left over in the period from +%v, the limit is %d",
			row.Scope, row.Rule, row.Judged, units, at, row.Limit)
	}
	return fmt.Sprintf("%s %s: %d %s in the %v from +%v, the limit is %d",
		row.Scope, row.Rule, row.Judged, units, row.Per, at, row.Limit)
}

// some names the first few ids.
func some(ids []string) string {
	const most = 5
	text := fmt.Sprintf("%q", ids[:min(len(ids), most)])
	if n := len(ids) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// String is the report for people: a line for each scope and rule, one for the whole, and what is wrong.
func (r *Report) String() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "scope\trule\talgorithm\tlimit\tcalls\tunits\tworst\tused\tlost\t")
	for _, row := range r.Rows {
		fmt.Fprintln(table, strings.Join(row.cells(), "\t"))
	}
	_ = table.Flush() // a Builder takes all
	fmt.Fprintf(&b, "\n%d calls, %d tasks, pick-ups a task %s, lost %d, twice %d\n",
		r.Calls, r.Tasks, number("%.2f", r.PickUps, 1), len(r.Lost), len(r.Duplicates))
	for _, v := range r.Violations() {
		fmt.Fprintf(&b, "WRONG: %s\n", v)
	}
	return b.String()
}

func (row Row) cells() []string {
	limit := fmt.Sprintf("%d/%s", row.Limit, short(row.Per))
	switch row.Algorithm {
	case tokenBucket:
		limit += fmt.Sprintf(" burst %d", row.Burst)
	case concurrency:
		limit = fmt.Sprintf("%d at once", row.Limit)
	case calendar:
		limit = fmt.Sprintf("%d from %s", row.Limit, row.Resets)
	}
	if row.Unit != "" {
		limit += " " + row.Unit
	}
	if row.Active != "" {
		limit += " in " + row.Active
	}
	note := ""
	switch {
	case row.Exceeded:
		note = "EXCEEDED"
	case row.Worst > row.Bound:
		note = "within jitter"
	}
	return []string{
		row.Scope, row.Rule, row.Algorithm, limit, fmt.Sprint(row.Calls), fmt.Sprint(row.Units),
		fmt.Sprintf("%d of %d", row.Worst, row.Bound), number("%.1f%%", row.Used, 100),
		fmt.Sprint(row.Lost), note,
	}
}

// short writes a duration without the zeros that Go puts behind it: 1m, not 1m0s.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// number formats a figure that may be missing.
func number(format string, f *float64, times float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf(format, *f*times)
}
