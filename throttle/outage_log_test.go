package throttle

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// asking is a log handler that asks the limiter whose lines it gets, as one does
// that bounds how much is logged.
type asking struct {
	slog.Handler
	limiter *Limiter
	asked   int
}

func (h *asking) Enabled(context.Context, slog.Level) bool { return true }

func (h *asking) Handle(ctx context.Context, _ slog.Record) error {
	h.asked++
	_, err := h.limiter.Allow(ctx, "p/log")
	return err
}

// A log handler may be slow, and may ask the limiter: nothing is locked while it
// runs.
func TestOutageLogsUnlocked(t *testing.T) {
	t.Parallel()
	h := &asking{}
	bubble(t, Config{Logger: slog.New(h)}, policyOf(t, failing(policy.FailOpen)), nil, func(t *testing.T, w *wire, l *Limiter) {
		h.limiter = l
		w.down.Store(true)
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Degraded {
			t.Errorf("Redis is down: %+v, %v", d, err)
		}
		w.down.Store(false)
		<-time.After(2 * sec) // which the client takes to dial again
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || d.Degraded {
			t.Errorf("Redis is back: %+v, %v", d, err)
		}
		if h.asked != 2 {
			t.Errorf("%d lines were logged, want 2", h.asked)
		}
	})
}
