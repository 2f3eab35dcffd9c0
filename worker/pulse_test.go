package worker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// told is a slog.Handler that keeps what was said of waking, or all, and when.
type told struct {
	all   bool
	mu    sync.Mutex
	lines []line
}

type line struct {
	at    time.Time
	level slog.Level
	text  string // with its attributes
}

func (*told) Enabled(context.Context, slog.Level) bool { return true }
func (h *told) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h *told) WithGroup(string) slog.Handler          { return h }

func (h *told) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	if !h.all && !strings.HasPrefix(text, "dispatch stalled") && !strings.HasPrefix(text, "dispatch resumed") {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, line{time.Now(), r.Level, text})
	return nil
}

// since returns what was said after the last call, in fake time.
func (h *told) since() []line {
	synctest.Wait()
	return h.take()
}

// take returns what was said after the last call.
func (h *told) take() []line {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.lines
	h.lines = nil
	return out
}

// wardServer looks seldom for tasks: the tests would take long.
var wardServer = asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 500 * time.Millisecond, DelayedTaskCheckInterval: 2 * time.Second}

// ward is a process in fake time in which a task waits for ten minutes, and whose waking
// can be broken.
type ward struct {
	*testing.T
	rdb    *redis.Client
	limits *Middleware
	said   *told
	looks  *lastLooks
	runs   chan time.Time
	broken atomic.Pointer[func(context.Context) error]
}

// lastLooks is an observer that notes which providers are looked at, by their labels.
type lastLooks struct {
	nobody
	mu sync.Mutex
	at map[string]time.Time
}

func (l *lastLooks) DispatcherPolled(provider, label string, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at, provider+" as "+label)
	if again {
		l.at[provider+" as "+label] = time.Now()
	}
}

// age is for how long a provider has not been looked at, below 0 when nobody waits.
func (l *lastLooks) age(name string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, waits := l.at[name]; waits {
		return time.Since(at)
	}
	return -1
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{T: t, said: &told{}, looks: &lastLooks{at: map[string]time.Time{}}, runs: make(chan time.Time, 10)}
	_, w.rdb = redistest.Miniredis(t)
	one := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 10 * time.Minute}}
	policy, err := policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{"p": {Rules: one}, "*": {Rules: one}})
	must(t, err)
	limiter, err := throttle.New(w.rdb, policy, throttle.Config{})
	must(t, err)
	if w.limits, err = NewMiddleware(MiddlewareConfig{Redis: w.rdb, Limiter: limiter, Logger: slog.New(w.said), Observer: w.looks}); err != nil {
		t.Fatal(err)
	}
	w.limits.dispatcher.Intercept(func(next dispatch.Func) dispatch.Func {
		return func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			if fault := w.broken.Load(); fault != nil {
				return throttle.Dispatched{}, (*fault)(ctx)
			}
			return next(ctx, req)
		}
	})
	return w
}

func (w *ward) serve() {
	server := w.limits.NewServer(wardServer)
	must(w, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		w.runs <- time.Now()
		return nil
	})))
	w.Cleanup(server.Shutdown)
}

// waits has a task of a scope wait for ten minutes.
func (w *ward) waits(scope string) {
	w.Helper()
	tasks := queue.NewClient(w.rdb, queue.ClientConfig{})
	for range 2 {
		if _, err := tasks.Enqueue(w.Context(), queue.Task{Type: "work", Scope: scope}); err != nil {
			w.Fatal(err)
		}
	}
	<-time.After(10 * time.Second)
}

// wantTold fails the test unless one line was said, with the words, so long after
// began.
func (w *ward) wantTold(level slog.Level, began time.Time, least, most time.Duration, words ...string) {
	w.Helper()
	lines := w.said.since()
	if len(lines) != 1 || lines[0].level != level {
		w.Fatalf("said %+v, want one line of %s", lines, level)
	}
	if after := lines[0].at.Sub(began); after < least || after > most {
		w.Errorf("told after %s, want %s to %s", after, least, most)
	}
	for _, word := range words {
		if !strings.Contains(lines[0].text, word) {
			w.Errorf("told %q, want %q in it", lines[0].text, word)
		}
	}
}

// "When none of these looks has been completed for 3 s, because a call hangs, a server
// refuses the script or a loop is gone, those who pick tasks up notice: the log has one
// line, with a provider and the last error, if there was one, and another line when they are
// woken again. The level is warn where Redis does not answer, which mends itself, and error
// otherwise."
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
			return nil
		}, "provider=p", slog.LevelWarn},
		"a server refuses": {func(context.Context, <-chan struct{}) error { return errors.New("NOPERM no such luck") }, "error=NOPERM", slog.LevelError},
		"a loop panics":    {func(context.Context, <-chan struct{}) error { panic("boom") }, "error=it panicked", slog.LevelError},
		"Redis is away":    {func(context.Context, <-chan struct{}) error { return errAway }, "error=dial", slog.LevelWarn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWard(t)
				w.serve()
				w.waits("p/a")
				<-time.After(4 * time.Minute)
				if lines := w.said.since(); len(lines) > 0 {
					t.Fatalf("all is well, and it said %+v", lines)
				}
				for range 2 { // it is told each time
					mended := make(chan struct{})
					fault := func(ctx context.Context) error { return test.fault(ctx, mended) }
					began := time.Now()
					w.broken.Store(&fault)
					<-time.After(time.Minute)
					w.wantTold(test.level, began, noticed-600*time.Millisecond, noticed+quietPoll+time.Second+wardServer.TaskCheckInterval*2, test.words)
					if age := w.looks.age("p as p"); age < time.Minute-quietPoll {
						t.Errorf("the observer knows of a look %s ago", age)
					}
					began = time.Now()
					w.broken.Store(nil)
					close(mended)
					<-time.After(time.Minute)
					w.wantTold(slog.LevelInfo, began, 0, time.Second/2, "provider=p after=1m")
					if age := w.looks.age("p as p"); age < 0 || age > time.Second/2 {
						t.Errorf("the observer knows of a look %s ago", age)
					}
				}
				if late := (<-w.runs).Add(10 * time.Minute).Sub(<-w.runs).Abs(); late > 100*time.Millisecond {
					t.Errorf("woken again, the task that waited starts %s late", late)
				}
			})
		})
	}
}

const (
	// noticed is how long nobody looks before it is told, and quietPoll how seldom a quiet provider is looked at.
	noticed, quietPoll = 3 * time.Second, 1500 * time.Millisecond
)

var errAway = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// "However many providers tasks wait for, that is one line, with how many more there are."
func TestStuckWakersAreOneLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t)
		w.serve()
		for _, scope := range []string{"p/a", "q", "r", "s"} {
			w.waits(scope)
		}
		w.said.since()
		fault := func(context.Context) error { return errAway }
		began := time.Now()
		w.broken.Store(&fault)
		<-time.After(time.Minute)
		w.wantTold(slog.LevelWarn, began, noticed-600*time.Millisecond, noticed+quietPoll+time.Second+wardServer.TaskCheckInterval*2, "provider=p ", "more=3")
		began = time.Now()
		w.broken.Store(nil)
		<-time.After(time.Minute)
		w.wantTold(slog.LevelInfo, began, 0, time.Second/2, "provider=p after=1m", "more=3")
	})
}
