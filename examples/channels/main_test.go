package main

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The calls of a channel keep to the limits of their scope.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, run)
	if got != "10 calls, at most 2 at once; the sixth came half a second after the first: true\n" {
		t.Errorf("got: %s", got)
	}
}
