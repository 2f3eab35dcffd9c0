package worker

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
)

// What grants hint at is followed, but looks that find nobody stay a small part of
// what is done; who was denied is looked for at once.
func TestHintsAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 5 * time.Millisecond
		w := newWard(t)
		defer w.limits.Stop()
		w.limits.size(4)
		var looks atomic.Int64
		w.limits.waker.ask = func(context.Context, throttle.WakeRequest) (throttle.Woken, error) {
			looks.Add(1)
			<-time.After(took)
			return throttle.Woken{}, nil
		}
		after := func(pass time.Duration, want int64, why string) {
			t.Helper()
			<-time.After(pass)
			synctest.Wait()
			if n := looks.Load(); n != want {
				t.Fatalf("%d looks, want %d: %s", n, want, why)
			}
		}
		granted := throttle.Decision{Allowed: true}
		w.limits.waker.heard("p", granted)
		after(2*took, 1, "a grant said that others may wait")
		for range 10 {
			w.limits.waker.heard("p", granted)
		}
		after(lullOf*took/2, 1, "a look has just found nobody")
		after(lullOf*took, 2, "the hints have not been followed")
		after(lullOf*took, 2, "nothing has been heard since")
		w.limits.waker.heard("p", granted)
		after(2*took, 3, "it has been quiet")
		w.limits.waker.heard("p", throttle.Decision{})
		after(took/2, 4, "one was denied, and waits")
		after(took, 4, "nothing has been heard since")
	})
}
