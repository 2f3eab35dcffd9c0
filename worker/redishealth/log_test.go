package redishealth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
)

var _ asynq.Logger = (*AsynqLogger)(nil)

// TestAsynqLog holds that asynq cannot flood the log: not while Redis is away,
// and not with one complaint again and again.
func TestAsynqLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out output
		down := true
		l := &AsynqLogger{
			log: slog.New(slog.NewTextHandler(&out, nil)),
			outage: func(context.Context, time.Duration) error {
				if down {
					return errDown
				}
				return nil
			},
		}
		lines := func() int { return strings.Count(out.String(), "\n") }

		l.Info("Starting processing")
		l.Debug("x")
		for range 1000 {
			l.Error("Dequeue error: dial tcp: connection refused")
		}
		if lines() != 0 {
			t.Errorf("while Redis is away:\n%s", out.String())
		}
		down = false
		for i := range 1000 {
			l.Error(fmt.Sprintf("Dequeue error: read tcp 127.0.0.1:%d: reset", i))
		}
		if lines() != 1 {
			t.Errorf("%d lines for one complaint:\n%s", lines(), out.String())
		}
		<-time.After(repeatEvery)
		l.Error("Dequeue error: again")
		if lines() != 2 || !strings.Contains(out.String(), "repeated=999") {
			t.Errorf("after a minute:\n%s", out.String())
		}
		l.Warn("Retry exhausted for task id=a") // logFailure has told it
		l.Warn("revoke task id=a")              // it was moved, as the worker says
		l.Warn("About a task id=a")
		l.Warn("About a task id=b")
		if lines() != 4 {
			t.Errorf("tasks are told each, once:\n%s", out.String())
		}
		before := lines()
		for i := range 100 {
			l.Warn(fmt.Sprintf("Could not remove task id=%d type=\"http\" from \"asynq:{default}:active\" err: EOF; Will retry syncing", i))
			l.Error(fmt.Sprintf("Failed to extend lease for tasks [a%d b]: EOF", i))
		}
		if n := lines() - before; n != 2 {
			t.Errorf("%d lines for two complaints about many tasks", n)
		}
		for i := range 10 * maxRepeats {
			l.Warn(fmt.Sprintf("kind %d: x", i))
		}
		if n := len(l.told); n > maxRepeats {
			t.Errorf("remembers %d kinds", n)
		}
		l.Fatal("gone") // and yet here we are
		if !strings.Contains(out.String(), "level=ERROR msg=asynq message=gone") {
			t.Error("Fatal was not told")
		}
	})
}

// Each distinct panic is logged whole once a minute, in a line without escapes under any handler.
func TestEachPanicIsLogged(t *testing.T) {
	t.Parallel()
	panics := map[string]func(){
		"one":     func() { panic("one") },
		"another": func() { panic("another") },
	}
	stackOf := func(f func()) (trace string) {
		defer func() { _ = recover(); trace = string(debug.Stack()) }()
		f()
		return ""
	}
	for name, handler := range map[string]func(io.Writer) slog.Handler{
		"text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		"json": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var out output
		l := &AsynqLogger{log: slog.New(handler(&out)), outage: func(context.Context, time.Duration) error { return nil }}
		for range 3 {
			for _, f := range panics {
				done := make(chan struct{})
				go func() {
					defer close(done)
					l.Error("recovering from panic. See the stack trace below for details:\n" + stackOf(f))
				}()
				<-done
			}
		}
		got := out.String()
		if n := strings.Count(got, "\n"); n != len(panics) || strings.Count(got, "handler panicked") != n || strings.Contains(got, `\n`) || strings.Contains(got, `\t`) || strings.Contains(got, "0x") {
			t.Errorf("%s: %d lines:\n%s", name, n, got)
		}
		for i := range len(panics) {
			first := fmt.Sprintf("TestEachPanicIsLogged.func%d ", i+1)
			if !strings.Contains(got, first) || !strings.Contains(got, "log_test.go:") || !strings.Contains(got, "stackOf") && !strings.Contains(got, "TestEachPanicIsLogged.func3 ") {
				t.Errorf("%s: no %q in\n%s", name, first, got)
			}
		}
	}
}

// TestCalm holds that warnings of one cause do not flood the log.
func TestCalm(t *testing.T) {
	t.Parallel()
	var out output
	var down error
	c := &quiet{slog.NewTextHandler(&out, nil), func(context.Context, time.Duration) error { return down }}
	log := slog.New(c).With("a", 1).WithGroup("g")
	log.Warn("first", "b", 2)
	down = errDown
	log.Warn("second")
	log.Error("third")
	log.Info("fourth")
	if got := out.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "msg=first a=1 g.b=2") || strings.Contains(got, "second") {
		t.Errorf("got\n%s", got)
	}
}
