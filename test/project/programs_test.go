package project

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(programs.Main(func() int { return redistest.Main(m) })) }

var must = redistest.Must

// goSays runs go at the root and returns its standard output.
func goSays(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		exit := new(exec.ExitError)
		errors.As(err, &exit)
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out)
}
