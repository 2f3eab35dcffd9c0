package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// All calls are made, and five of them fit the limit that is on trial.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if got != "20 calls were made; by the rule on trial 15 would have waited\n" {
		t.Errorf("got: %s", got)
	}
}
