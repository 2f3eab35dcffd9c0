package throttle

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// forHistories is for a test of scripts alone that takes its time. The race detector finds nothing in
// them and makes it minutes: make histories, and so CI, runs it without.
func forHistories(t *testing.T) {
	t.Helper()
	if raced {
		t.Skip("takes minutes with the race detector: make histories")
	}
}

// drawn draws which planted faults are sought: all, or at random one of as many as HISTORY_FAULTS says.
func drawn(t *testing.T) bool {
	t.Helper()
	of := 1
	if text := os.Getenv("HISTORY_FAULTS"); text != "" {
		var err error
		if of, err = strconv.Atoi(text); err != nil || of < 1 {
			t.Fatalf("HISTORY_FAULTS=%q is no number above 0", text)
		}
	}
	return rand.IntN(of) == 0
}
