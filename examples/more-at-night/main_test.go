package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Whenever it runs, one of the three rules holds, and the call is charged under it.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "one call by ") || strings.Count(got, " holds until ") != 1 {
		t.Fatalf("got:\n%s", got)
	}
	name := strings.Fields(lines[0])[3]
	if !strings.Contains(got, strings.TrimSuffix(name, ",")+" holds until ") {
		t.Errorf("got:\n%s", got)
	}
}
