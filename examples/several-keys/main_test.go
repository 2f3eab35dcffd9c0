package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// All calls have a key that the API knows, and every key is used.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "0 calls") != strings.HasSuffix(line, "\"\"\n") {
			t.Errorf("%s of:\n%s", line, got)
		}
	}
}
