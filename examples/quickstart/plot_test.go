package main

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
)

// The plot has a row for each window from the first call of the provider on, empty ones too, and leaves other providers out.
func TestPlot(t *testing.T) {
	t.Parallel()
	rep := &checker.Report{Rows: []checker.Row{
		{Scope: "pay/acme", Rule: "tenant", Algorithm: "sliding-window", Limit: 1, Per: time.Second},
		{Scope: "pay", Rule: "account", Algorithm: "sliding-window", Limit: 4, Per: 2 * time.Second},
	}}
	calls := []countapi.Call{
		{Scope: "pay/acme", Cost: 1, Arrived: 6500 * time.Millisecond}, // in the order in which answers left
		{Scope: "search/acme", Cost: 1, Arrived: 100 * time.Millisecond},
		{Scope: "pay/acme", Cost: 3, Arrived: 2 * time.Second}, {Scope: "pay", Cost: 1, Arrived: 3 * time.Second},
		{Scope: "payments", Cost: 1, Arrived: 3 * time.Second},
	}
	var b strings.Builder
	if err := plot(&b, rep, calls); err != nil {
		t.Fatal(err)
	}
	want := "\nCalls to pay in each 2s, under its limit of 4:\n" +
		"    0 s  " + strings.Repeat("#", 40) + "| 4\n" +
		"    2 s  " + strings.Repeat(" ", 40) + "| 0\n" +
		"    4 s  " + strings.Repeat("#", 10) + strings.Repeat(" ", 30) + "| 1\n"
	if b.String() != want {
		t.Errorf("got %s\nwant %s", b.String(), want)
	}
	b.Reset()
	if err := plot(&b, &checker.Report{}, calls); err != nil || b.Len() > 0 {
		t.Errorf("without a rule: %q, %v", b.String(), err)
	}
}
