package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The tasks that wait come by the new limit: by the old one they would take 18 s.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 || lines[1] != "version 2: set payments/acme tenant limit=100" || !strings.HasPrefix(lines[2], "36 charges in ") {
		t.Errorf("got:\n%s", got)
	}
}
