package asynqx

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// "Where Redis does not answer, what waits is dropped", and nobody is held up: neither who sends nor who ends.
func TestBeatsOfARedisThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b beats
		var sent atomic.Int64
		hangs := func(ctx context.Context) error {
			sent.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		for range 2 * mostBeats {
			_ = b.send(t.Context(), hangs)
		}
		if err := b.send(t.Context(), hangs); !errors.Is(err, errBeats) {
			t.Errorf("%v where %d calls wait", err, mostBeats)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("sending took %s", took)
		}
		b.wait()
		if took := time.Since(began); took > lastTry {
			t.Errorf("it was waited for them for %s", took)
		}
		<-time.After(TryFor)
		if n := sent.Load(); n != 1 {
			t.Errorf("%d calls were sent to a Redis that does not answer, want 1: the next heartbeat writes all anew", n)
		}
		if err := b.send(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call after that was answered %v, want how the last one has ended", err)
		}
		b.wait()
		if err := b.send(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Errorf("Redis answers again: %v", err)
		}
		b.wait()
	})
}
