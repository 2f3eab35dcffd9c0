package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The dear model has its 80 % of the budget, eight calls of ten cents, and the cheap one does the rest.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if got != "8 calls of gpt-5.5\n4 calls of gpt-5.5-mini\n0.12 dollars are left\n" {
		t.Error(got)
	}
}
