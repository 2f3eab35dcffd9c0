package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	work := func(ctx context.Context) error { return report(ctx, 20*time.Millisecond) }
	if err := run(t.Context(), &out, redistest.NewServer(t).Addr(), work); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "6 reports, at most 2 at once\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
