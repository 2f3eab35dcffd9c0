package figures

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Row is what was measured of one contender at one thing. What was not measured
// is None, or -1 where it is a whole number or a duration.
type Row struct {
	// Measure is the thing, Who did it.
	Measure, Who string
	// Missing says why it could not be done here. The other figures are then left out.
	Missing string
	// Started of Tasks tasks, with no more than Most starts in a time of the
	// rule's per, MostAPI where the calls arrived, of the Bound that the rule has.
	Started, Tasks       int
	Most, MostAPI, Bound int64
	// Over is by how many units a rule was exceeded, in any time; 0 when none was.
	Over, OverAPI float64
	// Used is a share, 1 for all.
	Used float64
	// PickUps, Commands and Bytes are for a task.
	PickUps, Commands, Bytes float64
	// Micros is how many µs Redis ran scripts for a task.
	Micros float64
	// P50 and P99 are of the lateness, or of what a call takes.
	P50, P99 time.Duration
	// Longest is the longest call of a script.
	Longest time.Duration
	// Rate is how many a second.
	Rate float64
	// Lost and Twice are counts of ids.
	Lost, Twice int
	// Note is what else there is to say.
	Note string
}

// NewRow returns a Row without any figure.
func NewRow(measure, who string) Row {
	return Row{
		Measure: measure, Who: who, Started: -1, Tasks: -1, Most: -1, MostAPI: -1, Bound: -1,
		Used: None, PickUps: None, Commands: None, Bytes: None, Micros: None, P50: -1, P99: -1, Longest: -1, Rate: None, Lost: -1, Twice: -1,
	}
}

// columns are those of the table, in order; docs/benchmarks.md explains them.
var columns = []struct {
	title string
	text  bool // flush left
	cell  func(Row) string
}{
	{"measure", true, func(r Row) string { return r.Measure }},
	{"who", true, func(r Row) string { return r.Who }},
	{"started", false, func(r Row) string { return started(r.Started, r.Tasks) }},
	{"used", false, func(r Row) string { return decimals(100*r.Used, 1, " %") }},
	{"most", false, func(r Row) string { return most(r.Most, r.Over) }},
	{"at the API", false, func(r Row) string { return most(r.MostAPI, r.OverAPI) }},
	{"bound", false, func(r Row) string { return count(r.Bound) }},
	{"pick-ups", false, func(r Row) string { return decimals(r.PickUps, 2, "") }},
	{"commands", false, func(r Row) string { return decimals(r.Commands, 1, "") }},
	{"µs", false, func(r Row) string { return decimals(r.Micros, 0, "") }},
	{"longest ms", false, func(r Row) string { return milliseconds(r.Longest) }},
	{"p50 ms", false, func(r Row) string { return milliseconds(r.P50) }},
	{"p99 ms", false, func(r Row) string { return milliseconds(r.P99) }},
	{"a second", false, func(r Row) string { return rate(r.Rate) }},
	{"bytes", false, func(r Row) string { return decimals(r.Bytes, 0, "") }},
	{"lost", false, func(r Row) string { return count(int64(r.Lost)) }},
	{"twice", false, func(r Row) string { return count(int64(r.Twice)) }},
	{"note", true, func(r Row) string { return r.Note }},
}

// WriteTable writes the rows as a table of Markdown whose columns line up. A measure is named in its first row.
func WriteTable(w io.Writer, rows []Row) error {
	lines := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		lines[0][i] = c.title
	}
	before := ""
	for _, row := range rows {
		lines = append(lines, cells(row, before))
		before = row.Measure
	}
	return writeLines(w, lines)
}

// writeLines writes a table whose first line has the titles.
func writeLines(w io.Writer, lines [][]string) error {
	widths := make([]int, len(columns))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for n, line := range lines {
		for i, cell := range line {
			out.WriteString("| " + pad(cell, widths[i], columns[i].text) + " ")
		}
		out.WriteString("|\n")
		if n == 0 {
			out.WriteString(rule(widths))
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func cells(row Row, before string) []string {
	if row.Missing != "" {
		bare := NewRow(row.Measure, row.Who)
		bare.Note = "missing: " + row.Missing
		row = bare
	}
	if row.Measure == before {
		row.Measure = ""
	}
	line := make([]string, len(columns))
	for i, c := range columns {
		line[i] = c.cell(row)
	}
	return line
}

// rule is the line under the titles.
func rule(widths []int) string {
	var out strings.Builder
	for i, width := range widths {
		end := "-:"
		if columns[i].text {
			end = "--"
		}
		out.WriteString("|" + strings.Repeat("-", width) + end)
	}
	return out.String() + "|\n"
}

func pad(cell string, width int, left bool) string {
	space := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
	if left {
		return cell + space
	}
	return space + cell
}

func count(n int64) string {
	if n < 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func started(n, of int) string {
	if n < 0 || n == of {
		return count(int64(n))
	}
	return fmt.Sprintf("%d of %d", n, of)
}

func most(n int64, over float64) string {
	if over > 0 {
		return count(n) + ", over by " + strconv.FormatFloat(math.Ceil(over*100)/100, 'f', 2, 64)
	}
	return count(n)
}

func decimals(f float64, places int, unit string) string {
	if math.IsNaN(f) {
		return ""
	}
	return strconv.FormatFloat(f, 'f', places, 64) + unit
}

// rate has three digits or more.
func rate(f float64) string {
	if f < 100 {
		return decimals(f, 1, "")
	}
	return decimals(f, 0, "")
}

func milliseconds(d time.Duration) string {
	if d < 0 {
		return ""
	}
	ms := float64(d) / float64(time.Millisecond)
	if ms < 100 {
		return decimals(ms, 2, "")
	}
	return decimals(ms, 0, "")
}

// Between returns what stands between two lines of a page, begin and end. The error says which of them the page lacks.
func Between(page, begin, end string) (string, error) {
	_, rest, found := strings.Cut(page, begin+"\n")
	if !found {
		return "", fmt.Errorf("figures: the page has no line %q", begin)
	}
	text, _, found := strings.Cut(rest, end+"\n")
	if !found {
		return "", fmt.Errorf("figures: the page has no line %q after %q", end, begin)
	}
	return text, nil
}

// Replace returns a page with what stands between two lines, begin and end, put anew. The error is that of Between.
func Replace(page, begin, end, text string) (string, error) {
	old, err := Between(page, begin, end)
	if err != nil {
		return "", err
	}
	return strings.Replace(page, begin+"\n"+old+end+"\n", begin+"\n"+text+end+"\n", 1), nil
}
