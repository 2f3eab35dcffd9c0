package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// What is not used comes back at once: all ten fit into one minute.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if got != "10 answers, 9000 tokens reserved, 7500 came back; within a minute: true\n" {
		t.Error(got)
	}
}
