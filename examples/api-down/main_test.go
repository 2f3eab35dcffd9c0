package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Every task is done, although calls failed.
func TestRun(t *testing.T) {
	t.Parallel()
	if got := redistest.Printed(t, run); !strings.HasPrefix(got, "30 tasks done, ") || strings.Contains(got, " 0 calls") {
		t.Error(got)
	}
}
