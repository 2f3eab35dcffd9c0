package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The big customer, who was first and has most, is done last; people who wait are done
// before their customer's batch.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	var done []string
	for line := range strings.Lines(out.String()) {
		scope, _, _ := strings.Cut(line, " ")
		done = append(done, scope)
	}
	if len(done) != 4 || done[0] != "llm/small/interactive" || done[3] != "llm/big" {
		t.Errorf("got:\n%s", out.String())
	}
}
