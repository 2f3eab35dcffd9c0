package throttle

import (
	"errors"
	"testing"
	"time"
)

// "The error wraps ErrUnavailable if Redis did not take the release. It is then sent again in the background": the place is free soon after Redis is back, however long its lease.
func TestReleaseIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w *wire, on bool){
		"refused": func(w *wire, on bool) { w.down.Store(on) },
		"hung":    func(w *wire, on bool) { w.hung.Store(on) },
	} {
		rule := oneRun()
		rule.Lease = time.Hour
		bubbleIn(t, name, Config{}, policyOf(t, rule), contextTimeout, func(t *testing.T, w *wire, l *Limiter) {
			_, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
			fault(w, true)
			if err := lease.Release(t.Context()); !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			<-time.After(10 * time.Minute)
			fault(w, false)
			<-time.After(lastRelease + 2*defaultTimeout) // one may be on its way, and hang
			if n := places(t, l); n != 1 {
				t.Errorf("%d places are free", n)
			}
		})
	}
}
