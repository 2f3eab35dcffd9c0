package throttletest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headway-go/headway/throttle"
)

const (
	unknownPause = 500 * time.Millisecond // after a denial that no clock ends
	outagePause  = 250 * time.Millisecond // after an outage
)

func pause(d throttle.Decision) time.Duration {
	if d.RetryAfter == throttle.Never {
		return unknownPause
	}
	return max(d.RetryAfter, time.Millisecond)
}

// tooLong refuses a wait that is known to outlast ctx.
func tooLong(ctx context.Context, d throttle.Decision) error {
	deadline, ok := ctx.Deadline()
	if !ok || d.RetryAfter == throttle.Never || d.RetryAfter <= time.Until(deadline) {
		return nil
	}
	return fmt.Errorf("%w: allowed in %s, after the context's deadline: %w", throttle.ErrMaxWait, d.RetryAfter, context.DeadlineExceeded)
}

// sleep waits for d as a real limiter does, and calls req's OnWait and BeforeStart.
func sleep(ctx context.Context, req throttle.Request, d time.Duration) error {
	if req.BeforeStart != nil {
		defer req.BeforeStart()
	}
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
	return errors.Join(err, l.Refund(ctx, g))
}
