package page

import (
	"fmt"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
)

// The charts of a scope: the last quarter of an hour and the last day.
const (
	nowSpan, nowSlot = 15 * time.Minute, 15 * time.Second
	daySpan, daySlot = 24 * time.Hour, 2 * time.Hour
)

// chart is spending over time against what the rules admit, as a drawing and as a table. Its x coordinates are parts of a hundred, so
// that it is as wide as the screen, and its y coordinates pixels.
type chart struct {
	Name string
	Bars []bar
	// Limit is the line of what the rules admit in the long run, or of the most if that is less; Peak is that of the most if it is more.
	Limit, Peak []line
	Ticks       []tick
	Marks       []mark
	Labels      []label
	Now         admitted // in a slot from now on
	PeakAbove   bool     // Now.Most is above the scale
	Step        string
	Depth, Base int
	Any         bool
}

type bar struct {
	At          time.Time
	Units       int64
	Tasks       int64
	Most        int64 // -1 if it is not known
	X, W        string
	Y, H        int
	Unfinished  bool // more may be recorded in it
	OverTheLine bool
}

type line struct {
	X1, X2 string
	Y1, Y2 int
}

// tick is a line of the scale.
type tick struct {
	Y, TextY int
	Text     string
}

// mark is a change by an API's answer.
type mark struct {
	At   time.Time
	X    string
	Kind string
	Text string
}

type label struct {
	At time.Time
	X  string
}

const (
	chartDepth, chartTop, chartBase = 184, 16, 160
	// laterFor is how long after its end a slot may grow: usage is sent every ten seconds.
	laterFor = 12 * time.Second
)

// charted is what a chart is drawn of.
type charted struct {
	name       string
	points     []usage.Point
	slot, span time.Duration
	scope      string
	periods    []policystore.Period
	events     []control.UpstreamEvent
	now        time.Time
}

func (in charted) draw() chart {
	c := chart{Name: in.name, Depth: chartDepth, Base: chartBase, Step: spanWords(in.slot)}
	scope, err := policy.ParseScope(in.scope)
	if len(in.points) == 0 || err != nil {
		return c
	}
	limits := make([]admitted, len(in.points))
	units, most, pace := int64(0), int64(0), int64(0)
	for i, p := range in.points {
		limits[i] = in.admits(scope, p.At)
		units, c.Any = max(units, p.Units), c.Any || p.Units > 0
		most, pace = max(most, limits[i].Most), max(pace, limits[i].Limit())
	}
	c.Now = limits[len(limits)-1]
	scale := newScale(units, pace, most)
	c.PeakAbove = c.Now.Known && c.Now.Most > scale.top
	c.Ticks = scale.ticks()
	part := func(n float64) string { return strconv.FormatFloat(n*100/float64(len(in.points)), 'f', 2, 64) + "%" }
	for i, p := range in.points {
		b := bar{At: p.At, Units: p.Units, Tasks: p.Tasks, Most: -1, X: part(float64(i) + .1), W: part(.8), Y: scale.y(p.Units)}
		b.H, b.Unfinished = chartBase-b.Y, p.At.Add(in.slot+laterFor).After(in.now)
		if p.Units > 0 && b.H < 2 {
			b.Y, b.H = chartBase-2, 2
		}
		if limits[i].Known {
			b.Most, b.OverTheLine = limits[i].Most, p.Units > limits[i].Most
		}
		c.Bars = append(c.Bars, b)
	}
	c.Limit = scale.steps(limits, part, func(a admitted) (int64, bool) { return a.Limit(), a.Known })
	c.Peak = scale.steps(limits, part, func(a admitted) (int64, bool) { return a.Most, a.Known && a.Peaks() })
	c.label(in)
	c.mark(in)
	return c
}

// admits returns what the rules admitted in a slot: the more of what they did at its beginning and at its end, if they changed in it.
func (in charted) admits(scope policy.Scope, from time.Time) (a admitted) {
	to := from.Add(in.slot)
	for _, at := range []time.Time{from, sooner(to.Add(-1), in.now)} {
		p := inForce(in.periods, at)
		if p == nil {
			continue
		}
		if one := admittedIn(p, scope, at, at.Add(in.slot), in.span); one.Known && (!a.Known || one.Most > a.Most) {
			a = one
		}
	}
	return a
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// label names some times on the axis.
func (c *chart) label(in charted) {
	const labels = 5
	first := in.points[0].At
	whole := time.Duration(len(in.points)) * in.slot
	every := whole / labels
	for _, round := range []time.Duration{time.Minute, 3 * time.Minute, 5 * time.Minute, time.Hour, 6 * time.Hour} {
		if every <= round {
			every = round
			break
		}
	}
	for at := first.Truncate(every).Add(every); at.Before(first.Add(whole)); at = at.Add(every) {
		x := float64(at.Sub(first)) * 100 / float64(whole)
		if x > 4 && x < 96 {
			c.Labels = append(c.Labels, label{at, strconv.FormatFloat(x, 'f', 2, 64) + "%"})
		}
	}
}

// mark marks what the API's answers changed.
func (c *chart) mark(in charted) {
	first, whole := in.points[0].At, time.Duration(len(in.points))*in.slot
	for _, e := range in.events {
		x := float64(e.At.Sub(first)) * 100 / float64(whole)
		if x < 0 || x > 100 || e.What != "pause" && e.What != "cut" {
			continue
		}
		c.Marks = append(c.Marks, mark{e.At.Time, strconv.FormatFloat(x, 'f', 2, 64) + "%", e.What, e.Change() + ", as the API answered " + e.Answer()})
	}
}

// scale maps units to pixels.
type scale struct{ top, step int64 }

// newScale returns a scale for the most units of a slot and for what is admitted, as far as that leaves bars that can be seen.
func newScale(units, pace, most int64) scale {
	top := max(1, units)
	if pace <= 6*top {
		top = max(top, pace)
	}
	if most <= 2*top {
		top = max(top, most)
	}
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{1, 2, 5} {
			if step := n * unit; 4*step >= top {
				return scale{max(top+top/25, step), step}
			}
		}
	}
}

func (s scale) y(units int64) int {
	return chartBase - int(float64(min(units, s.top))*float64(chartBase-chartTop)/float64(s.top))
}

func (s scale) ticks() (list []tick) {
	for n := s.step; n <= s.top; n += s.step {
		y := s.y(n)
		list = append(list, tick{y, y + 4, shortNumber(n)})
	}
	return list
}

// steps draws values as a line of steps. Slots without one, or with one above the scale, are gaps.
func (s scale) steps(limits []admitted, part func(float64) string, value func(admitted) (int64, bool)) (list []line) {
	last, drawn := 0, false
	for i, a := range limits {
		n, is := value(a)
		if is = is && n <= s.top; !is {
			drawn = false
			continue
		}
		y := s.y(n)
		if drawn && y == last {
			list[len(list)-1].X2 = part(float64(i + 1))
			continue
		}
		if drawn {
			x := part(float64(i))
			list = append(list, line{x, x, last, y})
		}
		list = append(list, line{part(float64(i)), part(float64(i + 1)), y, y})
		last, drawn = y, true
	}
	return list
}

// shortNumber writes a number for a narrow scale: 1,500 and 20k.
func shortNumber(n int64) string {
	switch {
	case n >= 1_000_000_000 && n%100_000_000 == 0:
		return strconv.FormatFloat(float64(n)/1e9, 'f', -1, 64) + "G"
	case n >= 1_000_000 && n%100_000 == 0:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + "M"
	case n >= 10_000 && n%100 == 0:
		return strconv.FormatFloat(float64(n)/1e3, 'f', -1, 64) + "k"
	}
	return number(n)
}

// ruleWords names a rule for a sentence: "tenant of payments/acme".
func ruleWords(b policy.MatchedRule) string {
	if b.Paused() {
		return "the pause of " + b.Scope.String()
	}
	return fmt.Sprintf("%s of %s", b.Rule.Name, b.Scope.String())
}
