package redistest

import (
	"testing"
	"time"
)

// waitStep is how often WaitFor looks.
const waitStep = 2 * time.Millisecond

// WaitFor returns when cond answers true and fails t when it has not within
// bound; what completes the sentence "waited in vain for …". It looks at once,
// then every two milliseconds, in the caller's goroutine, which must be the
// test's own.
func WaitFor(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	if cond() {
		return
	}
	tick := time.NewTicker(waitStep)
	defer tick.Stop()
	for end := time.Now().Add(bound); time.Now().Before(end); {
		<-tick.C
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain for %s, %v long", what, bound)
}
