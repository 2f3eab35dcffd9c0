package redistest

import (
	"testing"
	"time"
)

const (
	// waitStep is how often WaitFor looks.
	waitStep = 2 * time.Millisecond
	// askStep is how often servers are asked for what takes them seconds.
	askStep = 50 * time.Millisecond
)

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WaitFor returns when cond answers true and fails t when it has not within bound, or within Stretch(0) if that is longer; what
// completes the sentence "waited in vain for …". It looks at once, then every two milliseconds, in the caller's goroutine, which
// must be the test's own.
func WaitFor(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	waitEvery(t, waitStep, what, bound, cond)
}

// WaitAsking is WaitFor for a cond that asks servers and would keep them busy: it looks at once, then twenty times a second.
func WaitAsking(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	waitEvery(t, askStep, what, bound, cond)
}

func waitEvery(t testing.TB, step time.Duration, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	if cond() {
		return
	}
	bound = max(bound, Stretch(0)) // the bounds that packages give are stretched already
	tick := time.NewTicker(step)
	defer tick.Stop()
	for end := time.Now().Add(bound); time.Now().Before(end); {
		<-tick.C
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain for %s, %v long", what, bound)
}
