package figures

import (
	"fmt"
	"io"
	"strings"
)

// Merge writes an old table, as WriteTable wrote it, with the rows of some measures put anew: those that rows has take the
// place of the old ones of their measure, and measures that the old table lacks follow at its end. The error says where
// the old table is none of this package's, such as one with other columns.
func Merge(w io.Writer, old string, rows []Row) error {
	lines, err := readLines(old)
	if err != nil {
		return err
	}
	titles, groups := lines[0], groupsOf(lines[1:])
	var fresh [][]string
	before := ""
	for _, row := range rows {
		fresh = append(fresh, cells(row, before))
		before = row.Measure
	}
	for _, group := range groupsOf(fresh) {
		at := 0
		for at < len(groups) && groups[at][0][0] != group[0][0] {
			at++
		}
		if at == len(groups) {
			groups = append(groups, nil)
		}
		groups[at] = group
	}
	merged := [][]string{titles}
	for _, group := range groups {
		merged = append(merged, group...)
	}
	return writeLines(w, merged)
}

// groupsOf divides lines by measure, which the first line of each names.
func groupsOf(lines [][]string) (groups [][][]string) {
	for _, line := range lines {
		if line[0] != "" || len(groups) == 0 {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], line)
	}
	return groups
}

// readLines reads a table's cells, but for the line under the titles.
func readLines(table string) (lines [][]string, err error) {
	for line := range strings.Lines(table) {
		inner, begins := strings.CutPrefix(strings.TrimSpace(line), "|")
		inner, ends := strings.CutSuffix(inner, "|")
		if !begins || !ends {
			return nil, fmt.Errorf("figures: %.60q is no line of a table", line)
		}
		cells := strings.Split(inner, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		lines = append(lines, cells)
		if len(cells) != len(columns) {
			return nil, fmt.Errorf("figures: the line %.60q has %d cells, and the table has %d columns now: measure all of it anew", line, len(cells), len(columns))
		}
	}
	if len(lines) < 3 {
		return nil, fmt.Errorf("figures: there is no table")
	}
	for i, c := range columns {
		if lines[0][i] != c.title {
			return nil, fmt.Errorf("figures: the old table has a column %q where %q is now: measure all of it anew", lines[0][i], c.title)
		}
	}
	return append(lines[:1], lines[2:]...), nil
}
