package redistest

import "testing"

// Must ends the test if err is not nil. It works without a Redis.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
