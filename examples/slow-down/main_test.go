package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The first program is refused, and the second one waits for as long as the API has asked the first to.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if want := "program 1: 429, waited: false\nprogram 2: 200, waited: true\n"; got != want {
		t.Errorf("got:\n%s", got)
	}
}
