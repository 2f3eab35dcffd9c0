package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The tenant that pays for more is done first.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "geo/big is done") {
		t.Errorf("got:\n%s", got)
	}
}
