package main

import (
	"fmt"
	"strings"
	"time"

	durations "github.com/headway-go/headway/internal/duration"
)

// Starts are counted in plotCells cells, which double in length whenever a start lies beyond the last. So a million starts
// take no more memory than ten. The drawing has at most plotRows rows.
const (
	plotCells = 2048
	plotRows  = 12
	plotWidth = 40
)

// plotSteps are the lengths that a row may have: those that people count time in.
var plotSteps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour,
}

// startPlot counts when tasks would start, and draws it. A nil startPlot draws nothing.
type startPlot struct {
	from  time.Time
	each  time.Duration // of a cell
	cells [plotCells]int
	last  int // the last cell with a start
	total int
}

func newStartPlot(from time.Time) *startPlot {
	return &startPlot{from: from.Truncate(time.Second), each: 100 * time.Millisecond}
}

func (p *startPlot) add(at time.Time) {
	cell := max(0, int(at.Sub(p.from)/p.each))
	for cell >= plotCells {
		p.double()
		cell = int(at.Sub(p.from) / p.each)
	}
	p.cells[cell]++
	p.last, p.total = max(p.last, cell), p.total+1
}

// double makes cells twice as long.
func (p *startPlot) double() {
	for i := range plotCells / 2 {
		p.cells[i] = p.cells[2*i] + p.cells[2*i+1]
	}
	clear(p.cells[plotCells/2:])
	p.each, p.last = 2*p.each, p.last/2
}

// step is how long a row is: the least of plotSteps, or multiple of the longest, with which plotRows rows suffice.
func (p *startPlot) step() time.Duration {
	span := time.Duration(p.last+1) * p.each
	for _, step := range plotSteps {
		if span <= plotRows*step {
			return step
		}
	}
	longest := plotSteps[len(plotSteps)-1]
	return longest * ((span-1)/(plotRows*longest) + 1)
}

// rows are the starts in each row.
func (p *startPlot) rows(step time.Duration) []int {
	var rows []int
	for i, n := range p.cells[:p.last+1] {
		row := int(time.Duration(i) * p.each / step)
		for len(rows) <= row {
			rows = append(rows, 0)
		}
		rows[row] += n
	}
	return rows
}

// String draws the starts, a row for each step of time, in local time.
func (p *startPlot) String() string {
	if p == nil || p.total == 0 {
		return ""
	}
	step, most := p.step(), 1
	rows := p.rows(step)
	for _, n := range rows {
		most = max(most, n)
	}
	layout := time.TimeOnly
	if time.Duration(len(rows))*step >= 12*time.Hour {
		layout = "Jan _2 15:04"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "expected starts in each %s:\n", durations.Format(step))
	for i, n := range rows {
		bar := strings.Repeat("#", (n*plotWidth+most-1)/most)
		fmt.Fprintf(&b, "  %s  %-*s %d\n", p.from.Add(time.Duration(i)*step).Local().Format(layout), plotWidth, bar, n)
	}
	return b.String()
}
