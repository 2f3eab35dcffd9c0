package main

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The big customer, who was first and has most, is done last; people who wait are done before their customer's batch.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	var done []string
	for line := range strings.Lines(got) {
		scope, _, _ := strings.Cut(line, " ")
		done = append(done, scope)
	}
	if len(done) != 4 || done[0] != "llm/small/interactive" || done[3] != "llm/big" {
		t.Errorf("got:\n%s", got)
	}
}
