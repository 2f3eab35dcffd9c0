package redistest

import (
	"context"
	"io"
	"strings"
	"testing"
)

// Printed returns what an example prints, run against a server of its own. It fails t where the example fails.
func Printed(t testing.TB, run func(ctx context.Context, out io.Writer, addr string) error) string {
	t.Helper()
	var out strings.Builder
	if err := run(t.Context(), &out, NewServer(t).Addr()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
