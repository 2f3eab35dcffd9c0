package wire

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrUnavailable is wrapped by every error that says that Redis could not decide: it was down, too slow, full, read-only, or
// refused the call.
var ErrUnavailable = errors.New("throttle: Redis cannot decide")

// Unavailable returns the error of a call that failed: it wraps ErrUnavailable and names what the call was to do for a provider
// or scope. If the caller's context has ended, the error is that of the context.
func Unavailable(ctx context.Context, verb, scope string, err error) error {
	if dead := Ended(ctx); dead != nil {
		return dead
	}
	return fmt.Errorf("%w: %s %q: %w", ErrUnavailable, verb, scope, err)
}

// Ended returns the error of a context that has ended. A deadline that has passed counts before the context's own timer fires:
// the client, whose connections have the same deadline, may be quicker.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, has := ctx.Deadline(); has && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
