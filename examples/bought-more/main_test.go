package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The tasks that wait come by the new limit: by the old one they would take 18 s.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || lines[1] != "version 2: set payments/acme tenant limit=100" || !strings.HasPrefix(lines[2], "36 charges in ") {
		t.Errorf("got:\n%s", out.String())
	}
}
