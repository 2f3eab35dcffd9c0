package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestFail(t *testing.T) {
	t.Parallel()
	full := Errorf("make room", "Redis at %s is full", "h:1")
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"plain":       {errors.New("broken"), "p: broken\n"},
		"what try":    {full, "p: Redis at h:1 is full\ntry: make room\n"},
		"without try": {Errorf("", "broken"), "p: broken\n"},
		"wrapped":     {fmt.Errorf("publish: %w", full), "p: publish: Redis at h:1 is full\ntry: make room\n"},
		"joined":      {errors.Join(errors.New("a"), full, errors.New("b")), "p: a\np: Redis at h:1 is full\ntry: make room\np: b\n"},
		"lines":       {errors.New("l.yaml:1: a\nl.yaml:2: b"), "p: l.yaml:1: a\np: l.yaml:2: b\n"},
		"hostile": {errors.Join(errors.New("a"+hostile), Errorf("d"+hostile, "b\nc"+hostile)),
			"p: a" + escaped + "\np: b\np: c" + escaped + "\ntry: d" + escaped + "\n"},
		"two wrapped": {fmt.Errorf("%w: %w", errors.New("a"), errors.New("b")), "p: a: b\n"},
	} {
		var got bytes.Buffer
		Fail(&got, "p", tt.err)
		if got.String() != tt.want {
			t.Errorf("%s: got %q, want %q", name, got.String(), tt.want)
		}
	}
}

// TestSignals holds that the first signal drains and the second kills.
func TestSignals(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 2)
	killed := make(chan struct{})
	ctx, stop := watch(t.Context(), signals, func() { close(killed) })
	defer stop()
	if ctx.Err() != nil {
		t.Fatal("ended before any signal")
	}
	signals <- syscall.SIGTERM
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, ErrInterrupted) || !strings.Contains(cause.Error(), "terminated") {
		t.Errorf("cause %v", cause)
	}
	select {
	case <-killed:
		t.Fatal("killed by the first signal")
	default:
	}
	signals <- os.Interrupt
	select {
	case <-killed:
	case <-time.After(2 * time.Minute):
		t.Fatal("not killed by the second signal")
	}
}

func TestSignalsStopped(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 2)
	ctx, stop := watch(t.Context(), signals, func() { t.Error("killed after stop") })
	stop()
	stop()
	<-ctx.Done()
	if cause := context.Cause(ctx); errors.Is(cause, ErrInterrupted) {
		t.Errorf("stop reads as a signal: %v", cause)
	}
	ctx, stop = Notify(t.Context(), func() {})
	stop()
	<-ctx.Done()
}

func TestVersion(t *testing.T) {
	t.Parallel()
	setting := func(k, v string) debug.BuildSetting { return debug.BuildSetting{Key: k, Value: v} }
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3":             {Main: debug.Module{Version: "v1.2.3"}},
		"devel":              {Main: debug.Module{Version: "(devel)"}},
		"0123456789ab":       {Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "false")}},
		"0123456789ab-dirty": {Settings: []debug.BuildSetting{setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "true")}},
	} {
		if got := versionOf(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if Version() == "" {
		t.Error("no version")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
