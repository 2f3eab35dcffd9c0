package figures

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// Panel is one run in a Chart: its starts, in order, counted from the first.
type Panel struct {
	Title  string
	Starts []time.Duration
}

// Chart draws runs below each other, as the starts in each slice of time beside what the limit allows in one. It is a plain SVG
// that takes the colours of the reader's page, light or dark.
type Chart struct {
	Title  string
	Panels []Panel
	// Span is how much of each run is drawn, in slices of Slice.
	Span, Slice time.Duration
	// Limit is how many starts the rule allows in a Slice.
	Limit float64
}

// The chart's measures, in its own units.
const (
	chartWidth  = 720
	plotLeft    = 44
	plotWidth   = chartWidth - plotLeft - 12
	plotHeight  = 76
	panelHeight = plotHeight + 40
	panelsTop   = 34
)

// style is read on light and dark pages alike.
const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #57606a }
.title { font-weight: 600; fill: #24292f }
.bar { fill: #0969da } .over { fill: #cf222e } .axis { stroke: #8c959f } .limit { stroke: #9a6700; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #8b949e } .title { fill: #e6edf3 }
.bar { fill: #58a6ff } .over { fill: #ff7b72 } .axis { stroke: #6e7681 } .limit { stroke: #d29922 }
}
</style>
`

// SVG returns the picture.
func (c Chart) SVG() string {
	top := c.top()
	height := panelsTop + panelHeight*len(c.Panels)
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(&out, "<title>%s</title>\n%s", html.EscapeString(c.Title), style)
	fmt.Fprintf(&out, `<text class="title" x="%d" y="18">%s</text>`+"\n", plotLeft, html.EscapeString(c.Title))
	for i, p := range c.Panels {
		fmt.Fprintf(&out, `<g transform="translate(%d,%d)">`+"\n", plotLeft, panelsTop+i*panelHeight)
		c.panel(&out, p, top)
		out.WriteString("</g>\n")
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// panel draws one run into a box of its own.
func (c Chart) panel(out *strings.Builder, p Panel, top float64) {
	const base = plotHeight + 18
	y := func(n float64) float64 { return base - n/top*plotHeight }
	fmt.Fprintf(out, `<text x="0" y="12">%s</text>`+"\n", html.EscapeString(p.Title))
	counts := c.counts(p)
	width := float64(plotWidth) / float64(len(counts))
	c.bars(out, "bar", counts, func(n float64) (float64, float64) { return base, y(min(n, c.Limit)) }, width)
	c.bars(out, "over", counts, func(n float64) (float64, float64) { return y(c.Limit), y(min(max(n, c.Limit), top)) }, width)
	for i, n := range counts {
		if n > top {
			fmt.Fprintf(out, `<text x="%.1f" y="%.1f">%.0f ↑</text>`+"\n", (float64(i)+1.2)*width, y(top)+10, n)
		}
	}
	fmt.Fprintf(out, `<path class="axis" d="M0 %dH%d"/>`+"\n", base, plotWidth)
	fmt.Fprintf(out, `<path class="limit" d="M0 %.1fH%d"/>`+"\n", y(c.Limit), plotWidth)
	for _, n := range []float64{0, c.Limit, top} {
		fmt.Fprintf(out, `<text x="-6" y="%.1f" text-anchor="end">%.0f</text>`+"\n", y(n)+4, n)
	}
	for at := time.Duration(0); at <= c.Span; at += c.Span / 5 {
		x := float64(at) / float64(c.Span) * plotWidth
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", min(x, plotWidth-8), base+15, at)
	}
}

// bars draws the part of each bar that stands between two heights, in one path.
func (c Chart) bars(out *strings.Builder, class string, counts []float64, part func(float64) (low, high float64), width float64) {
	fmt.Fprintf(out, `<path class="%s" d="`, class)
	for i, n := range counts {
		if low, high := part(n); low > high {
			fmt.Fprintf(out, "M%.1f %.1fV%.1fh%.1fV%.1fz", float64(i)*width, low, high, width*0.85, low)
		}
	}
	out.WriteString("\"/>\n")
}

// counts returns the starts of each slice.
func (c Chart) counts(p Panel) []float64 {
	counts := make([]float64, int(c.Span/c.Slice))
	for _, start := range p.Starts {
		if i := int(start / c.Slice); start >= 0 && i < len(counts) {
			counts[i]++
		}
	}
	return counts
}

// top is the height of all panels: the most starts in any slice, from two to
// four times the limit. A bar that is higher has its number beside it.
func (c Chart) top() float64 {
	top := 2 * c.Limit
	for _, p := range c.Panels {
		for _, n := range c.counts(p) {
			top = max(top, n)
		}
	}
	return min(top, 4*c.Limit)
}
