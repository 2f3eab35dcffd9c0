package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Each kind of task has its own end.
func TestRun(t *testing.T) {
	t.Parallel()
	got := strings.Split(strings.TrimSpace(redistest.Printed(t, run)), "\n")
	slices.Sort(got)
	want := []string{
		"alarm: failed, and is archived", "login code: sent by e-mail", "newsletter: in the slow lane", "notification: dropped",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
