package throttle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// bubble runs a test in a synctest bubble, with a limiter over a miniredis that
// is reached through a wire. opts may be changed before the client is made.
func bubble(t *testing.T, cfg Config, policy *policy.Policy, change func(*redis.Options), test func(t *testing.T, w *wire, l *Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, _ := redistest.Miniredis(t)
		w := &wire{}
		opts := w.through(redistest.MiniredisOptions(m))
		if change != nil {
			change(opts)
		}
		l, err := New(clientOf(t, opts), policy, cfg)
		if err != nil {
			t.Fatal(err)
		}
		test(t, w, l)
	})
}

func contextTimeout(opts *redis.Options) { opts.ContextTimeoutEnabled = true }

func readTimeout(opts *redis.Options) { opts.ReadTimeout = 2 * sec }

// "Timeout bounds one decision, retries included. It is exact only if the client's ContextTimeoutEnabled is set."
func TestTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 300 * ms
	tests := map[string]struct {
		change func(*redis.Options)
		queued bool
		want   time.Duration
	}{
		"alone, with ContextTimeoutEnabled":     {contextTimeout, false, timeout},
		"queued, with ContextTimeoutEnabled":    {contextTimeout, true, timeout},
		"alone, until the client's ReadTimeout": {readTimeout, false, 2 * sec},
		"queued, whatever the client does":      {readTimeout, true, timeout},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Config{Timeout: timeout}, policyOf(t, window10()), test.change, func(t *testing.T, w *wire, l *Limiter) {
				if err := allowed(l, "p/x"); err != nil {
					t.Fatal(err)
				}
				w.hung.Store(true)
				if test.queued {
					for range maxSenders {
						go func() { _ = allowed(l, "p/x") }()
					}
					synctest.Wait()
				}
				began := time.Now()
				_, err := l.Allow(t.Context(), "p/x")
				if took := time.Since(began); took != test.want {
					t.Errorf("it took %s, want %s", took, test.want)
				}
				if !errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want ErrUnavailable and no context's error", err)
				}
			})
		})
	}
}

// "a dead context is the context's error, not an outage", not even under a rule
// that is open: whoever notices the deadline first, the client or the context.
func TestDeadContextIsNoOutage(t *testing.T) {
	t.Parallel()
	open := window10()
	open.OnRedisError = policy.FailOpen
	for name, change := range map[string]func(*redis.Options){"ContextTimeoutEnabled": contextTimeout, "default": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Config{}, policyOf(t, open), change, func(t *testing.T, w *wire, l *Limiter) {
				if err := allowed(l, "p/x"); err != nil {
					t.Fatal(err)
				}
				w.hung.Store(true)
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
					d, err := l.Allow(ctx, "p/x")
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) || d.Allowed || d.Degraded {
						t.Fatalf("got %+v, %v", d, err)
					}
				}
				if !l.outage.since.IsZero() {
					t.Error("a dead context began an outage")
				}
			})
		})
	}
}

// A context that has ended is not even sent.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{}, policyOf(t, window10()))
	g := gated(rdb)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-sec))
	defer cancel()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: late} {
		for name, ask := range map[string]func() error{
			"Allow":  func() error { _, err := b.Allow(ctx, "p/x"); return err },
			"Decide": func() error { _, err := b.Decide(ctx, Request{Scope: "p/x"}); return err },
			"Peek":   func() error { _, err := b.Peek(ctx, Request{Scope: "p/x"}); return err },
			"Start":  func() error { _, err := b.Start(ctx, Request{Scope: "p/x"}); return err },
			"Wait":   func() error { _, err := b.Wait(ctx, Request{Scope: "p/x"}); return err },
		} {
			if err := ask(); !errors.Is(err, want) || errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
	}
	if n := g.trips.Load(); n != 0 {
		t.Errorf("%d round trips", n)
	}
}
