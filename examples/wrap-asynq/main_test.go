package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Every mail is sent once, although none may be retried.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr(), 7); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		if want := "mail " + string(rune('1'+i)); strings.Count(out.String(), want) != 1 {
			t.Errorf("%s is not there once:\n%s", want, out.String())
		}
	}
}
