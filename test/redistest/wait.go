package redistest

import (
	"testing"
	"time"
)

const (
	// waitStep is after how long WaitFor looks again at first, and longestStep at last.
	waitStep, longestStep = 2 * time.Millisecond, 200 * time.Millisecond
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
// completes the sentence "waited in vain for …". It looks at once, after two milliseconds, and then the more seldom the longer it has
// waited, five times a second at least, in the caller's goroutine, which must be the test's own.
func WaitFor(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	waitEvery(t, waitStep, longestStep, what, bound, cond)
}

// WaitAsking is WaitFor for a cond that asks servers and would keep them busy: it looks at once, then twenty times a second.
func WaitAsking(t testing.TB, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	waitEvery(t, askStep, askStep, what, bound, cond)
}

func waitEvery(t testing.TB, least, most time.Duration, what string, bound time.Duration, cond func() bool) {
	t.Helper()
	bound = max(bound, Stretch(0)) // the bounds that packages give are stretched already
	for began := time.Now(); ; {
		if cond() {
			return
		}
		waited := time.Since(began)
		if waited >= bound {
			break
		}
		<-time.After(min(max(least, waited/8), most))
	}
	t.Fatalf("waited in vain for %s, %v long", what, bound)
}
