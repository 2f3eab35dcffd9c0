package main

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	got := redistest.Printed(t, func(ctx context.Context, out io.Writer, addr string) error {
		return run(ctx, out, addr, func(ctx context.Context) error { return report(ctx, 20*time.Millisecond) })
	})
	if want := "6 reports, at most 2 at once\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
