package throttle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A bounded context ends with its own deadline or with its caller, whichever is
// first, for whoever asks it then.
func TestBounded(t *testing.T) {
	t.Parallel()
	ended := func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	synctest.Test(t, func(t *testing.T) {
		caller, cancel := context.WithCancel(t.Context())
		ctx := within(caller, time.Second)
		if at, ok := ctx.Deadline(); !ok || time.Until(at) != time.Second || ctx.Err() != nil || ended(ctx) {
			t.Errorf("begins with %v, %v", at, ctx.Err())
		}
		<-time.After(time.Second)
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !ended(ctx) {
			t.Errorf("goes on after its deadline: %v", ctx.Err())
		}
		ctx = within(caller, time.Second)
		cancel()
		if !errors.Is(ctx.Err(), context.Canceled) || !ended(ctx) {
			t.Errorf("outlasts its caller: %v", ctx.Err())
		}
		sooner, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if within(sooner, time.Second) != sooner {
			t.Error("a caller with a sooner deadline gets another")
		}
	})
}
