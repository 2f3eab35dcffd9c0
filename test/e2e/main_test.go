// Package e2e runs the built programs as people do: worker and enqueue, against
// a Redis of each test's own and an outbound API that counts what arrives.
//
// What arrived is judged by package checker, which shares no code with the
// limiter. The windows of these tests have a margin of 500 ms: that is how much
// longer one call may be on its way to the API than another, on a machine that
// runs workers, Redis, API and other tests on two cores. With seven programs
// waiting for each core, handlers began up to 176 ms after their grants, and calls
// took up to 171 ms. The margin is part of the window that is kept, and not of the
// window that is judged; a token bucket pays it from its burst.
package e2e

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen.
var bound = programs.Bound

// waiting is how many tests run at once, unless -parallel says otherwise: most
// of them wait more than they work.
const waiting = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	redis.SetLogger(nobody{}) // outages are part of the tests
	os.Exit(programs.Main(func() int { return redistest.Main(m) }))
}

type nobody struct{}

func (nobody) Printf(context.Context, string, ...any) {}

// told fails the test unless stderr is what went wrong and what to try, and
// nothing was written where results go.
func told(t *testing.T, stdout, stderr, prefix string, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if stdout != "" || len(lines) < 2 || !strings.HasPrefix(lines[0], prefix+": ") || !strings.HasPrefix(lines[len(lines)-1], "try: ") {
		t.Errorf("stdout %q, stderr %q; want a line that says what, and one what to try", stdout, stderr)
	}
	for _, w := range want {
		if !strings.Contains(stderr, w) {
			t.Errorf("%q lacks %q", stderr, w)
		}
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
