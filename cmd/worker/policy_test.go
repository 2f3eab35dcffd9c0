package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestKeepPublished holds "hourly renewal", and that an outage is told once and
// tried each minute.
func TestKeepPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		var (
			mu      sync.Mutex
			at      []time.Duration
			failing bool
		)
		began := time.Now()
		publish := func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
			if failing {
				return errDown
			}
			return nil
		}
		fail := func(v bool) {
			mu.Lock()
			defer mu.Unlock()
			failing = v
		}
		times := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(at)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); keepPublished(ctx, publish, slog.New(slog.NewTextHandler(&out, nil))) }()
		wait := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		wait(2*time.Hour + time.Second)
		if at := times(); len(at) != 2 || at[0] != time.Hour || at[1] != 2*time.Hour || out.String() != "" {
			t.Errorf("published at %v:\n%s", at, out.String())
		}
		fail(true)
		wait(time.Hour + 5*time.Minute)
		if at := times(); len(at) != 8 || strings.Count(out.String(), "level=WARN") != 1 {
			t.Errorf("published at %v:\n%s", at, out.String())
		}
		fail(false)
		wait(time.Minute)
		if !strings.Contains(out.String(), "published again\"") {
			t.Errorf("not told that it works again:\n%s", out.String())
		}
		cancel()
		<-done
	})
}
