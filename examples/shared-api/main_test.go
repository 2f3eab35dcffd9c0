package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Four requests are answered, two are told to come back, and the tasks wait.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if strings.Count(got, ": 200, retry after \"\"") != 4 || strings.Count(got, ": 429, retry after \"") != 2 || !strings.Contains(got, "8 calls") {
		t.Errorf("got:\n%s", got)
	}
}
