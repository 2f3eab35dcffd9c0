package worker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// wardServer looks seldom for tasks: the tests would take long.
var wardServer = asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 500 * time.Millisecond, DelayedTaskCheckInterval: 2 * time.Second}

// ward is a process in fake time whose tasks wait for ten minutes, and whose waking can be broken.
type ward struct {
	*system
	said   says
	read   int // how much of it was looked at
	runs   chan time.Time
	broken atomic.Pointer[func(context.Context) error]
	mended chan struct{}
}

// newWard has a task of each of the scopes wait.
func newWard(t *testing.T, scopes ...string) *ward {
	t.Helper()
	one := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 10 * time.Minute}}
	policy, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"p": {Rules: one}, "*": {Rules: one}})
	must(t, err)
	_, rdb := redistest.Miniredis(t)
	w := &ward{runs: make(chan time.Time, 10)}
	w.system = newSystemOn(t, rdb, policy, MiddlewareConfig{Logger: logTo(&w.said)})
	w.throttle.dispatcher.Intercept(func(next dispatch.Func) dispatch.Func {
		return func(ctx context.Context, req waitlist.Request) (waitlist.Dispatched, error) {
			if fault := w.broken.Load(); fault != nil {
				return waitlist.Dispatched{}, (*fault)(ctx)
			}
			return next(ctx, req)
		}
	})
	server := w.throttle.NewServer(wardServer)
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		w.runs <- time.Now()
		return nil
	})))
	t.Cleanup(server.Shutdown)
	for _, scope := range scopes {
		w.add(queue.Task{Scope: scope})
		w.add(queue.Task{Scope: scope})
		<-time.After(10 * time.Second)
	}
	return w
}

// breaks has looks fail for a minute, and wants one line about it.
func (w *ward) breaks(fault func(context.Context) error, level slog.Level, words ...string) {
	w.t.Helper()
	const noticed, quietPoll = 3 * time.Second, 3750 * time.Millisecond // how long nobody looks, and how seldom at a quiet provider
	began := time.Now()
	w.mended = make(chan struct{})
	w.broken.Store(&fault)
	<-time.After(time.Minute)
	w.wantTold(level, began, noticed-600*time.Millisecond, noticed+quietPoll+time.Second+wardServer.TaskCheckInterval*2, words...)
}

// mends has looks succeed again, and wants another line.
func (w *ward) mends(words ...string) {
	w.t.Helper()
	began := time.Now()
	w.broken.Store(nil)
	close(w.mended)
	<-time.After(time.Minute)
	w.wantTold(slog.LevelInfo, began, 0, time.Second/2, append(words, "after=1m")...)
}

// since returns which lines of waking were said after the last call.
func (w *ward) since() (lines []string) {
	synctest.Wait()
	text := w.said.String()
	for line := range strings.Lines(text[w.read:]) {
		if strings.Contains(line, `msg="dispatch stalled`) || strings.Contains(line, `msg="dispatch resumed`) {
			lines = append(lines, line)
		}
	}
	w.read = len(text)
	return lines
}

// wantTold fails the test unless one line was said, with the words, so long after began.
func (w *ward) wantTold(level slog.Level, began time.Time, least, most time.Duration, words ...string) {
	w.t.Helper()
	lines := w.since()
	if len(lines) != 1 {
		w.t.Fatalf("said %q, want one line", lines)
	}
	at, err := time.Parse("time="+time.RFC3339Nano, strings.Fields(lines[0])[0])
	must(w.t, err)
	if after := at.Sub(began); after < least-time.Millisecond || after > most { // the log has whole milliseconds
		w.t.Errorf("told after %s, want %s to %s", after, least, most)
	}
	for _, word := range append(words, "level="+level.String()) {
		if !strings.Contains(lines[0], word) {
			w.t.Errorf("told %q, want %q in it", lines[0], word)
		}
	}
}

// "When none of these looks has been completed for 3 s, because a call hangs, a server refuses the script or a loop is gone, those who
// pick tasks up notice: the log has one line, with a provider and the last error, if there was one, and another line when they are woken
// again. The level is warn where Redis does not answer, which mends itself, and error otherwise."
func TestStuckWakerIsTold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault func(ctx context.Context, mended <-chan struct{}) error
		words string
		level slog.Level
	}{
		"a call hangs": {func(ctx context.Context, mended <-chan struct{}) error {
			select {
			case <-mended:
			case <-ctx.Done():
			}
			return errAway
		}, "provider=p", slog.LevelWarn},
		"a server refuses": {func(context.Context, <-chan struct{}) error { return errors.New("NOPERM no such luck") }, `error="NOPERM`, slog.LevelError},
		"a loop panics":    {func(context.Context, <-chan struct{}) error { panic("boom") }, `error="it panicked`, slog.LevelError},
		"Redis is away":    {func(context.Context, <-chan struct{}) error { return errAway }, `error="dial`, slog.LevelWarn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWard(t, "p/a")
				<-time.After(4 * time.Minute)
				if lines := w.since(); len(lines) > 0 {
					t.Fatalf("all is well, and it said %+v", lines)
				}
				for range 2 { // it is told each time
					w.breaks(func(ctx context.Context) error { return test.fault(ctx, w.mended) }, test.level, test.words)
					w.mends()
				}
				if late := (<-w.runs).Add(10 * time.Minute).Sub(<-w.runs).Abs(); late > 100*time.Millisecond {
					t.Errorf("woken again, the task that waited starts %s late", late)
				}
			})
		})
	}
}

// "However many providers tasks wait for, that is one line, with how many more there are."
func TestStuckWakersAreOneLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p/a", "q", "r", "s")
		w.since()
		w.breaks(func(context.Context) error { return errAway }, slog.LevelWarn, "provider=p ", "more=3")
		w.mends("more=3")
	})
}
