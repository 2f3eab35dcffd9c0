package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
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
		var out buffer
		var f fakeRedis
		var ups []bool
		w := newWatch(f.ping, slog.New(slog.NewTextHandler(&out, nil)))
		w.up = func(up bool) { ups = append(ups, up) }
		w.count = func() (int, error) { return 3, nil }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		after := func(d time.Duration) {
			<-time.After(d) // bubble time
			synctest.Wait()
		}
		after(time.Minute)
		if out.String() != "" {
			t.Errorf("said while all was well: %s", out.String())
		}
		if n := w.liveWorkers(); n != 3 {
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
		if err := w.check(t.Context(), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
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
		var out buffer
		var f fakeRedis
		w := newWatch(f.ping, slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
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
		if !strings.Contains(out.String(), "redis does not answer") {
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
		w := newWatch(f.ping, slog.New(slog.DiscardHandler))
		_ = w.check(t.Context(), time.Hour)
		<-time.After(time.Millisecond)
		w.called(t.Context(), io.EOF)
		f.down.Store(true)
		if err := w.check(t.Context(), time.Hour); !errors.Is(err, errDown) {
			t.Errorf("an hour may pass, and a call has failed: %v", err)
		}
		// What fails after it is over may be calls of the outage, for a while.
		f.down.Store(false)
		<-time.After(time.Second)
		if err := w.outages(t.Context(), 0); !errors.Is(err, errSettling) {
			t.Errorf("just after an outage: %v", err)
		}
		<-time.After(settleTime)
		if err := w.outages(t.Context(), 0); err != nil {
			t.Errorf("long after an outage: %v", err)
		}
		f.down.Store(true)
		_ = w.check(t.Context(), 0)
		pings := f.pings.Load()
		for range 100 { // complaints of an outage that is known
			w.called(t.Context(), io.EOF)
			_ = w.check(t.Context(), time.Hour)
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
	w := newWatch(f.ping, slog.New(slog.DiscardHandler))
	if err := w.check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.mute.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.check(ctx, 0); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestWatchAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f fakeRedis
		w := newWatch(f.ping, slog.New(slog.DiscardHandler))
		for range 100 {
			_ = w.check(t.Context(), time.Second)
		}
		if n := f.pings.Load(); n != 1 {
			t.Errorf("%d pings, want 1", n)
		}
		<-time.After(time.Second)
		_ = w.check(t.Context(), time.Second)
		if n := f.pings.Load(); n != 2 {
			t.Errorf("%d pings, want 2", n)
		}
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		down, stopping bool
		workers        int
		code           int
		status, redis  string
	}{
		"well":              {false, false, 2, 200, "ok", "ok"},
		"workers unknown":   {false, false, -1, 200, "ok", "ok"},
		"down":              {true, false, 2, 503, "unavailable", "down"},
		"stopping":          {false, true, 2, 503, "stopping", "ok"},
		"stopping and down": {true, true, 2, 503, "stopping", "down"},
	} {
		var f fakeRedis
		f.down.Store(tt.down)
		w := newWatch(f.ping, slog.New(slog.DiscardHandler))
		w.workers = tt.workers
		h := &health{watch: w, started: time.Now(), version: "v1", concurrency: 32, queues: map[string]int{"default": 1}}
		h.stopping.Store(tt.stopping)
		rec := httptest.NewRecorder()
		statusHandler(h, http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var a healthAnswer
		if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if rec.Code != tt.code || a.Status != tt.status || a.Redis != tt.redis || a.Version != "v1" || a.Concurrency != 32 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		if known := a.Workers != nil; known != (tt.workers >= 0 && !tt.down) {
			t.Errorf("%s: workers %v", name, a.Workers)
		}
	}
}

func TestStatusRoutes(t *testing.T) {
	t.Parallel()
	var f fakeRedis
	h := statusHandler(&health{watch: newWatch(f.ping, slog.New(slog.DiscardHandler))}, http.NotFoundHandler())
	for request, want := range map[string]int{
		"GET /healthz": 200, "HEAD /healthz": 200, "POST /healthz": 405, "GET /": 200, "GET /x": 404, "DELETE /metrics": 405,
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", request, w.Code, want)
		}
	}
}
