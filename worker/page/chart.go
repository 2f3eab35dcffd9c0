package page

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
)

// chart is spending over time as a drawing and as a table.
type chart struct {
	Bars         []bar
	Top          int64  // the greatest value of the axis
	Limit        int64  // what the rules admit in one slot, 0 if unknown
	LimitY       int    // the y coordinate of its line
	LimitRule    string // the rule that Limit is of
	Step         string
	Width, Depth int // of the drawing
	Base         int // the y coordinate where the bars begin
	Any          bool
}

type bar struct {
	At          time.Time
	Units       int64
	Tasks       int64
	X, Y, W, H  int
	Label       string // of the axis, empty for most
	LabelX      int
	Now         bool // the slot is not over
	OverTheLine bool
}

const (
	chartWidth, chartDepth      = 640, 170
	chartLeft, chartTop         = 8, 14
	chartBase, chartLabelHeight = 142, 160
)

// chartOf draws the spending in slots of one length, and what the tightest rule admits in one.
func chartOf(points []usage.Point, step time.Duration, l control.Level, now time.Time) chart {
	c := chart{Width: chartWidth, Depth: chartDepth, Base: chartBase, Step: spanWords(step)}
	if len(points) == 0 {
		return c
	}
	for _, p := range points {
		c.Top, c.Any = max(c.Top, p.Units), c.Any || p.Units > 0
	}
	c.Limit, c.LimitRule = admitted(l, step)
	if c.Limit > 0 && c.Limit <= 4*max(1, c.Top) {
		c.Top = max(c.Top, c.Limit)
	}
	c.Top = max(1, c.Top+c.Top/20)
	room := chartBase - chartTop
	y := func(units int64) int { return chartBase - int(units*int64(room)/c.Top) }
	if c.Limit > 0 && c.Limit <= c.Top {
		c.LimitY = y(c.Limit)
	}
	width := (chartWidth - 2*chartLeft) / len(points)
	every := max(1, (len(points)+5)/6)
	for i, p := range points {
		b := bar{At: p.At, Units: p.Units, Tasks: p.Tasks, X: chartLeft + i*width + 2, W: width - 4, Now: p.At.Add(step).After(now)}
		b.Y = y(p.Units)
		if b.H = chartBase - b.Y; p.Units > 0 && b.H < 2 {
			b.Y, b.H = chartBase-2, 2
		}
		if i%every == 0 {
			b.Label, b.LabelX = p.At.UTC().Format("15:04"), b.X
		}
		c.Bars = append(c.Bars, b)
	}
	return c
}

// admitted returns how many units the scope's rules admit in a time, as far as known, and by which
// rule.
func admitted(l control.Level, in time.Duration) (least int64, rule string) {
	for _, r := range l.Rules {
		if r.Pace <= 0 || r.Unit != "" && r.Unit != policy.Requests {
			continue
		}
		if n := int64(r.Pace * in.Seconds()); least == 0 || n < least {
			least, rule = max(1, n), fmt.Sprintf("%s of %s", r.Rule, r.RuleScope)
		}
	}
	return least, rule
}
