package main

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// Three calls, and then none until it is midnight in Los Angeles.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	_, when, found := strings.Cut(lines[len(lines)-1], "resets at ")
	at, err := time.Parse("2006-01-02 15:04 MST", when)
	zone, zoneErr := time.LoadLocation("America/Los_Angeles")
	if err != nil || zoneErr != nil || !found || len(lines) < 4 {
		t.Fatalf("%v, %v in\n%s", err, zoneErr, got)
	}
	if there := at.In(zone); there.Hour() != 0 || there.Minute() != 0 {
		t.Errorf("it resets at %s in Los Angeles:\n%s", there, got)
	}
}
