package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The record is of what was, and the replay takes twice as long.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if got != "21 tasks of payments/acme waited 1s at most; at half of the limit it is 2s, for payments:account\n" {
		t.Errorf("got: %s", got)
	}
}
