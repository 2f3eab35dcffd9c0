package main

import (
	"bytes"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The first program is refused, and the second one waits for as long as the API has asked the
// first to.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	if want := "program 1: 429, waited: false\nprogram 2: 200, waited: true\n"; out.String() != want {
		t.Errorf("got:\n%s", out.String())
	}
}
