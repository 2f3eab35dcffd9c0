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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := oneRun()
			rule.Lease = time.Hour
			bubble(t, Config{}, policyOf(t, rule), contextTimeout, func(t *testing.T, w *wire, l *Limiter) {
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
		})
	}
}

// "… until Redis takes it or the lease has run out and the places are free anyway", and a
// second Release begins nothing beside it.
func TestReleaseGivesUp(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, oneRun()), nil, func(t *testing.T, w *wire, l *Limiter) {
		_, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
		w.down.Store(true)
		const calls = 3
		sent := gated(l.rdb)
		for range calls {
			_ = lease.Release(t.Context())
		}
		<-time.After(leaseTime)
		tried := sent.trips.Load() - calls
		// After 0.25, 0.75, 1.75, 3.75 s and then every two seconds, until 30 s are over, and a
		// little later each time by what the client's own tries take.
		if tried < 14 || tried > 17 {
			t.Errorf("it was sent %d times again within its lease", tried)
		}
		<-time.After(10 * leaseTime)
		if late := sent.trips.Load() - calls - tried; late != 0 {
			t.Errorf("it was sent %d times after the lease", late)
		}
		w.down.Store(false)
		<-time.After(2 * sec) // for the client's pool to have dialled
	})
}
