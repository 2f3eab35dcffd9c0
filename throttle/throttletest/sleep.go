package throttletest

import (
	"context"
	"errors"
	"time"

	"github.com/headway-go/headway/throttle"
)

// unknownPause is how long Wait waits after a denial that no clock ends.
const unknownPause = 500 * time.Millisecond

func pause(d throttle.Decision) time.Duration {
	if d.RetryAfter == throttle.Unknown {
		return unknownPause
	}
	return d.RetryAfter
}

// sleep waits for d as a real limiter does, telling req of it.
func sleep(ctx context.Context, req throttle.Request, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	if req.OnWait != nil {
		defer req.OnWait(d)()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Limiter) putBack(ctx context.Context, g throttle.Grant, err error) error {
	return errors.Join(err, l.GiveBack(ctx, g))
}

func isUnavailable(err error) bool { return errors.Is(err, throttle.ErrUnavailable) }
