package redishealth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
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

// TestWatch holds that each change is told once, however long it lasts.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out output
		var f fakeRedis
		var ups []bool
		w := New(Config{
			Ping: f.ping, Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Up: func(up bool) { ups = append(ups, up) }, Count: func() (int, error) { return 3, nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
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
		cancel()
		<-done
		if want := []bool{true, false, true, false}; len(ups) != len(want) {
			t.Errorf("told %v, want %v", ups, want)
		}
	})
}

// TestWatchKnowsOfFailedCalls holds that an outage is told as soon as a call has failed, and
// when it is over how many did.
func TestWatchKnowsOfFailedCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out output
		var f fakeRedis
		w := New(Config{Ping: f.ping, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
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
		cancel()
		<-done
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
		w := New(Config{Ping: f.ping, Logger: slog.New(slog.DiscardHandler)})
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

// TestWatchStopped holds that a context that ends says nothing about Redis.
func TestWatchStopped(t *testing.T) {
	t.Parallel()
	var f fakeRedis
	w := New(Config{Ping: f.ping, Logger: slog.New(slog.DiscardHandler)})
	if err := w.Check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.mute.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Check(ctx, 0); err != nil {
		t.Errorf("got %v", err)
	}
}

// output is written by several goroutines at once.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
