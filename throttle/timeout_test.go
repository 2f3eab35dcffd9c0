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
func bubble(t *testing.T, cfg Config, policy *policy.Policy, change func(*redis.Options), test func(t *testing.T, w *cable, l *Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, _ := redistest.Miniredis(t)
		w := &cable{}
		opts := w.through(redistest.MiniredisOptions(m))
		if change != nil {
			change(opts)
		}
		l := newLimiter(t, clientOf(t, opts), policy, cfg)
		test(t, w, l)
	})
}

// bubbleIn is bubble in a subtest of its own, beside the others.
func bubbleIn(t *testing.T, name string, cfg Config, policy *policy.Policy, change func(*redis.Options), test func(t *testing.T, w *cable, l *Limiter)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		bubble(t, cfg, policy, change, test)
	})
}

func contextTimeout(opts *redis.Options) { opts.ContextTimeoutEnabled = true }

func readTimeout(opts *redis.Options) { opts.ReadTimeout = 2 * sec }

// "Timeout bounds one decision, retries included. It is exact only if the client's ContextTimeoutEnabled is set."
func TestTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 300 * ms
	for name, test := range map[string]struct {
		change func(*redis.Options)
		queued bool
		want   time.Duration
	}{
		"alone, with ContextTimeoutEnabled":     {contextTimeout, false, timeout},
		"queued, with ContextTimeoutEnabled":    {contextTimeout, true, timeout},
		"alone, until the client's ReadTimeout": {readTimeout, false, 2 * sec},
		"queued, whatever the client does":      {readTimeout, true, timeout},
	} {
		bubbleIn(t, name, Config{Timeout: timeout}, policyOf(t, window10()), test.change, func(t *testing.T, w *cable, l *Limiter) {
			noError(t, allowed(l, "p/x"))
			w.hung.Store(true)
			if test.queued {
				for range maxSenders {
					go func() { _ = allowed(l, "p/x") }()
				}
				synctest.Wait()
			}
			began := time.Now()
			_, err := l.Allow(t.Context(), "p/x")
			if took := time.Since(began); took != test.want || !errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %s: %v; want %s, ErrUnavailable and no context's error", took, err, test.want)
			}
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
		bubbleIn(t, name, Config{}, policyOf(t, open), change, func(t *testing.T, w *cable, l *Limiter) {
			noError(t, allowed(l, "p/x"))
			w.hung.Store(true)
			for range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
				d, err := l.Allow(ctx, "p/x")
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) || d.Allowed || d.Degraded {
					t.Fatalf("got %+v, %v", d, err)
				}
			}
			if l.outage.On() {
				t.Error("a dead context began an outage")
			}
		})
	}
}
