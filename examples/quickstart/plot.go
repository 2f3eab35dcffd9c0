package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
)

// plotWidth is how many columns a full window takes.
const plotWidth = 40

// plot draws the calls that arrived under the first sliding window of a whole provider: a row for each window, from the first
// call on, and a bar at the limit. Windows in between hold no more either: the table judges them all.
func plot(w io.Writer, rep *checker.Report, calls []countapi.Call) error {
	i := slices.IndexFunc(rep.Rows, func(r checker.Row) bool { return r.Algorithm == "sliding-window" && !strings.Contains(r.Scope, "/") })
	if i < 0 {
		return nil
	}
	rule := rep.Rows[i]
	units := unitsOf(rule, calls)
	if len(units) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nCalls to %s in each %s, under its limit of %d:\n", rule.Scope, rule.Per, rule.Limit)
	for i, n := range units {
		bar := strings.Repeat("#", int(n*plotWidth/rule.Limit))
		fmt.Fprintf(&b, "%5.0f s  %-*s| %d\n", (time.Duration(i) * rule.Per).Seconds(), plotWidth, bar, n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// unitsOf are the units that arrived in each window of a rule, the first of which begins with the first call under it.
func unitsOf(rule checker.Row, calls []countapi.Call) (units []int64) {
	var from time.Duration
	for _, c := range slices.SortedFunc(slices.Values(calls), func(a, b countapi.Call) int { return cmp.Compare(a.Arrived, b.Arrived) }) {
		if c.Scope != rule.Scope && !strings.HasPrefix(c.Scope, rule.Scope+"/") {
			continue
		}
		if len(units) == 0 {
			from = c.Arrived
		}
		for at := int((c.Arrived - from) / rule.Per); len(units) <= at; {
			units = append(units, 0)
		}
		units[len(units)-1] += c.Cost
	}
	return units
}
