package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The tenant that pays for more is done first.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "geo/big is done") {
		t.Errorf("got:\n%s", out.String())
	}
}
