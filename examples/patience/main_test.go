package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Each kind of task has its own end.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(got)
	want := []string{
		"alarm: failed, and is archived", "login code: sent by e-mail", "newsletter: in the slow lane", "notification: dropped",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
