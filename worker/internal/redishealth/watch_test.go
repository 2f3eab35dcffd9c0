package redishealth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
)

var errDown = errors.New("down")

// fakeRedis is a ping that fails while down is set, and counts.
type fakeRedis struct {
	down  atomic.Bool
	mute  atomic.Bool
	pings atomic.Int32
}

func (f *fakeRedis) ping(ctx context.Context) error {
	f.pings.Add(1)
	if f.mute.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if f.down.Load() {
		return errDown
	}
	return nil
}

func (f *fakeRedis) watch(log slog.Handler) *Watch {
	return New(Config{Ping: f.ping, Logger: slog.New(log), Up: func(bool) {}, Count: func() (int, error) { return 3, nil }})
}

// runs has a watch run until end is called.
func runs(t *testing.T, w *Watch) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	return func() { cancel(); <-done }
}

// TestWatch holds that each change is logged once, however long it lasts.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out programs.Output
		var f fakeRedis
		var ups []bool
		w := f.watch(slog.NewTextHandler(&out, nil))
		w.cfg.Up = func(up bool) { ups = append(ups, up) }
		end := runs(t, w)
		after := func(d time.Duration) {
			<-time.After(d) // bubble time
			synctest.Wait()
		}
		after(time.Minute)
		if out.String() != "" {
			t.Errorf("said while all was well: %s", out.String())
		}
		if n := w.Workers(); n != 3 {
			t.Errorf("%d workers", n)
		}
		f.down.Store(true)
		after(time.Hour)
		f.down.Store(false)
		after(time.Hour)
		if got := strings.Count(out.String(), "\n"); got != 2 {
			t.Errorf("%d lines, want 2:\n%s", got, out.String())
		}
		if !strings.Contains(out.String(), "down_seconds=3600") {
			t.Errorf("no length of the outage:\n%s", out.String())
		}
		f.mute.Store(true) // answers no more: the bound makes it an outage
		after(time.Minute)
		if err := w.Check(t.Context(), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("mute: %v", err)
		}
		end()
		if want := []bool{true, false, true, false}; len(ups) != len(want) {
			t.Errorf("got %v, want %v", ups, want)
		}
	})
}

// TestWatchKnowsOfFailedCalls holds that an outage is logged as soon as a call has failed, and when it is over how many did.
func TestWatchKnowsOfFailedCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out programs.Output
		var f fakeRedis
		w := f.watch(slog.NewTextHandler(&out, nil))
		end := runs(t, w)
		call := w.ProcessHook(func(_ context.Context, cmd redis.Cmder) error { return cmd.Err() })
		fails := func(err error) {
			cmd := redis.NewCmd(t.Context())
			cmd.SetErr(err)
			_ = call(t.Context(), cmd)
			synctest.Wait()
		}
		<-time.After(100 * time.Millisecond) // the first ping was answered
		pings := f.pings.Load()
		for _, err := range []error{nil, redis.Nil, context.Canceled, answer("ERR no such command")} {
			fails(err)
		}
		if n := f.pings.Load(); n != pings || out.String() != "" {
			t.Errorf("%d pings after answers, and said %q", n-pings, out.String())
		}
		f.down.Store(true)
		fails(io.EOF)
		if !strings.Contains(out.String(), "redis unavailable; tasks wait") {
			t.Errorf("said %q when a call had failed", out.String())
		}
		for range 99 {
			fails(answer("LOADING Redis is loading the dataset in memory"))
		}
		<-time.After(3 * time.Second)
		f.down.Store(false)
		fails(nil) // and is answered
		if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "down_seconds=") || !strings.Contains(got, "failed_calls=100") {
			t.Errorf("said\n%s", got)
		}
		fails(io.EOF) // and Redis answers a ping
		<-time.After(watchEvery)
		if got := out.String(); strings.Count(got, "\n") != 2 {
			t.Errorf("one call that failed is no outage:\n%s", got)
		}
		end()
	})
}

// answer is an error that Redis answered.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// TestWatchDoubts holds that an answer does not count when a call has failed since.
func TestWatchDoubts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f fakeRedis
		w := f.watch(slog.DiscardHandler)
		_ = w.Check(t.Context(), time.Hour)
		<-time.After(time.Millisecond)
		w.called(t.Context(), io.EOF)
		f.down.Store(true)
		if err := w.Check(t.Context(), time.Hour); !errors.Is(err, errDown) {
			t.Errorf("an hour may pass, and a call has failed: %v", err)
		}
		// What fails after it is over may be calls of the outage, for a while.
		f.down.Store(false)
		<-time.After(time.Second)
		if err := w.Outage(t.Context(), 0); !errors.Is(err, errSettling) {
			t.Errorf("just after an outage: %v", err)
		}
		<-time.After(settleTime)
		if err := w.Outage(t.Context(), 0); err != nil {
			t.Errorf("long after an outage: %v", err)
		}
		f.down.Store(true)
		_ = w.Check(t.Context(), 0)
		pings := f.pings.Load()
		for range 100 { // complaints of an outage that is known
			w.called(t.Context(), io.EOF)
			_ = w.Check(t.Context(), time.Hour)
		}
		if n := f.pings.Load(); n != pings {
			t.Errorf("%d more pings", n-pings)
		}
	})
}

var _ asynq.Logger = (*AsynqLogger)(nil)

// TestAsynqLog holds that asynq cannot flood the log: not while Redis is away, and not with one complaint again and again.
func TestAsynqLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out programs.Output
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
		<-time.After(time.Minute)
		l.Error("Dequeue error: again")
		if lines() != 2 || !strings.Contains(out.String(), "more=999") {
			t.Errorf("after a minute:\n%s", out.String())
		}
		l.Warn("Retry exhausted for task id=a") // logFailure has logged it
		l.Warn("revoke task id=a")              // it was moved, as the worker says
		l.Warn("About a task id=a")
		l.Warn("About a task id=b")
		if lines() != 4 {
			t.Errorf("each task has one line:\n%s", out.String())
		}
		before := lines()
		for i := range 100 {
			l.Warn(fmt.Sprintf("Could not remove task id=%d type=\"http\" from \"asynq:{default}:active\" err: EOF; Will retry syncing", i))
			l.Error(fmt.Sprintf("Failed to extend lease for tasks [a%d b]: EOF", i))
		}
		if n := lines() - before; n != 2 {
			t.Errorf("%d lines for two complaints about many tasks", n)
		}
		l.Fatal("gone") // and yet here we are
		if !strings.Contains(out.String(), "level=ERROR msg=asynq message=gone") {
			t.Error("Fatal was not logged")
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
		var out programs.Output
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
			if !strings.Contains(got, first) || !strings.Contains(got, "watch_test.go:") || !strings.Contains(got, "stackOf") && !strings.Contains(got, "TestEachPanicIsLogged.func3 ") {
				t.Errorf("%s: no %q in\n%s", name, first, got)
			}
		}
	}
}

// TestCalm holds that warnings of one cause do not flood the log.
func TestCalm(t *testing.T) {
	t.Parallel()
	var out programs.Output
	var f fakeRedis
	w := f.watch(slog.DiscardHandler)
	log := w.Calm(slog.New(slog.NewTextHandler(&out, nil))).With("a", 1).WithGroup("g")
	log.Warn("first", "b", 2)
	f.down.Store(true)
	w.called(t.Context(), io.EOF)
	log.Warn("second")
	log.Error("third")
	log.Info("fourth")
	if got := out.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "msg=first a=1 g.b=2") || strings.Contains(got, "second") {
		t.Errorf("got\n%s", got)
	}
}
