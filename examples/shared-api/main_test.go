package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Four requests are answered, two are told to come back, and the tasks wait.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if strings.Count(got, ": 200, retry after \"\"") != 4 || strings.Count(got, ": 429, retry after \"") != 2 || !strings.Contains(got, "8 calls") {
		t.Errorf("got:\n%s", got)
	}
}
