package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Whenever it runs, one of the three rules holds, and the call is charged under it.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "one call by ") || strings.Count(out.String(), " holds until ") != 1 {
		t.Fatalf("got:\n%s", out.String())
	}
	name := strings.Fields(lines[0])[3]
	if !strings.Contains(out.String(), strings.TrimSuffix(name, ",")+" holds until ") {
		t.Errorf("got:\n%s", out.String())
	}
}
