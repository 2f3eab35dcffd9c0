package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Every mail is sent once, although none may be retried.
func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, func(ctx context.Context, out io.Writer, addr string) error { return run(ctx, out, addr, 7) })
	for i := range 7 {
		if want := "mail " + string(rune('1'+i)); strings.Count(got, want) != 1 {
			t.Errorf("%s is not there once:\n%s", want, got)
		}
	}
}
