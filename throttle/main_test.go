package throttle

import (
	"os"
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
