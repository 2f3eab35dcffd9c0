package page

import (
	"math"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
)

type period struct {
	name, step  string // step is the slot in words
	slot, span  time.Duration
	labelsEvery time.Duration
}

var (
	quarterHour = period{"the last 15 minutes", "15 s", 15 * time.Second, 15 * time.Minute, 3 * time.Minute}
	wholeDay    = period{"the last day", "2 h", 2 * time.Hour, 24 * time.Hour, 6 * time.Hour}
)

// chart is spending against what the rules admit now. Its x coordinates are percent of the width, its y coordinates pixels.
type chart struct {
	Name        string
	Bars        []bar
	Limit       int64 // what the rules admit in a slot in the long run; -1 if no rule says it
	LimitRule   string
	LimitY      int // of its line, 0 for none
	Ticks       []tick
	Marks       []mark
	Labels      []label
	Step        string
	Depth, Base int
	Any         bool
}

type bar struct {
	At         time.Time
	Units      int64
	Tasks      int64
	X, W       string
	Y, H       int
	Unfinished bool // more may be recorded in it
}

type tick struct {
	Y    int
	Text string
}

type mark struct{ X, Text string }

type label struct {
	At time.Time
	X  string
}

const (
	chartDepth, chartTop, chartBase = 184, 16, 160
	// laterFor is how long after its end a slot may grow: usage is sent every ten seconds.
	laterFor = 12 * time.Second
)

type drawing struct {
	scope  string
	policy *policy.Policy
	events []control.UpstreamEvent
	now    time.Time
}

func (d drawing) draw(of period, points []usage.Point) chart {
	c := chart{Name: of.name, Depth: chartDepth, Base: chartBase, Step: of.step}
	if len(points) == 0 {
		return c
	}
	most := int64(1)
	for _, p := range points {
		most, c.Any = max(most, p.Units), c.Any || p.Units > 0
	}
	c.Limit, c.LimitRule = d.admits(of)
	if c.Limit <= 6*most { // bars under a higher line could not be seen
		most = max(most, c.Limit)
	}
	scale := newScale(most)
	if c.Limit >= 0 && c.Limit <= scale.top {
		c.LimitY = scale.y(c.Limit)
	}
	for n := scale.step; n <= scale.top; n += scale.step {
		c.Ticks = append(c.Ticks, tick{scale.y(n), number(n)})
	}
	for i, p := range points {
		b := bar{At: p.At, Units: p.Units, Tasks: p.Tasks, X: percent(float64(i)+.1, len(points)), W: percent(.8, len(points)), Y: scale.y(p.Units)}
		if p.Units > 0 {
			b.Y = min(b.Y, chartBase-2)
		}
		b.H, b.Unfinished = chartBase-b.Y, p.At.Add(of.slot+laterFor).After(d.now)
		c.Bars = append(c.Bars, b)
	}
	first, whole := points[0].At, time.Duration(len(points))*of.slot
	c.label(first, whole, of.labelsEvery)
	for _, e := range d.events {
		at := e.At.Sub(first)
		if at >= 0 && at <= whole && (e.What == "pause" || e.What == "cut") {
			c.Marks = append(c.Marks, mark{percent(at.Seconds(), int(whole.Seconds())), e.Change() + ", as the API answered " + e.Answer()})
		}
	}
	return c
}

// admits returns what the rules that apply now admit in a slot in the long run, and the rule that admits least; -1 if no
// rule says it. Rules with windows longer than the chart do not count.
func (d drawing) admits(of period) (least int64, rule string) {
	scope, err := policy.ParseScope(d.scope)
	if err != nil {
		return -1, rule
	}
	bounds, _ := d.policy.MatchAt(scope, d.now)
	least = -1
	for _, b := range bounds {
		r := b.Rule
		if b.Paused() {
			return 0, "the pause of " + b.Scope.String()
		}
		if r.Unlimited || r.Shadow || r.Algorithm == policy.Concurrency || r.Algorithm == policy.Calendar || r.Per > of.span ||
			r.Unit != "" && r.Unit != policy.Requests || r.Active != nil && !r.Active.Holds(d.now) {
			continue
		}
		if n := int64(math.Ceil(float64(r.Limit) * of.slot.Seconds() / r.Per.Seconds())); least < 0 || n < least {
			least, rule = n, r.Name+" of "+b.Scope.String()
		}
	}
	return least, rule
}

func percent(n float64, whole int) string {
	return strconv.FormatFloat(n*100/float64(whole), 'f', 2, 64) + "%"
}

func (c *chart) label(first time.Time, whole, every time.Duration) {
	for at := first.Truncate(every).Add(every); at.Before(first.Add(whole)); at = at.Add(every) {
		if x := at.Sub(first); x > whole/25 && x < whole-whole/25 {
			c.Labels = append(c.Labels, label{at, percent(x.Seconds(), int(whole.Seconds()))})
		}
	}
}

type scale struct{ top, step int64 }

// newScale returns a scale with at most four steps of 1, 2 or 5 times a power of ten.
func newScale(most int64) scale {
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{1, 2, 5} {
			if step := n * unit; 4*step >= most {
				return scale{max(most+most/25, step), step}
			}
		}
	}
}

func (s scale) y(units int64) int {
	return chartBase - int(float64(units)*float64(chartBase-chartTop)/float64(s.top))
}
