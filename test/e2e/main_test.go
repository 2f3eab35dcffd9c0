// Package e2e runs the built programs as people do: worker and enqueue, against
// a Redis of each test's own and an outbound API that counts what arrives.
//
// What arrived is judged by package checker, which shares no code with the limiter. The windows of these tests have a margin of
// 500 ms: that is how much longer one call may be on its way to the API than another, on a machine that runs workers, Redis, API
// and other tests on two cores. With seven programs waiting for each core, handlers began up to 176 ms after their grants, and
// calls took up to 171 ms. The margin is part of the window that is kept, and not of the window that is judged; a token bucket
// pays it from its burst.
package e2e

import (
	"os"
	"testing"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen.
var bound = programs.Bound

func TestMain(m *testing.M) {
	redistest.AtOnce(6)
	os.Exit(programs.Main(func() int { return redistest.Main(m) }))
}

var must = redistest.Must
