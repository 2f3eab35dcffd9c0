package asynqx

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// Tasks of every asynq in testedReleases are moved by the scripts as by asynq's own
// code. Each release is built and run as a program of its own, which takes it from the
// module cache or the module proxy.
//
// To take a new release in: add it to testedReleases, require it in go.mod, and run all tests.
func TestReleases(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a program for every asynq release")
	}
	for _, release := range testedReleases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			program := buildWith(t, release)
			server := redistest.NewServer(t)
			y := newYard(t, server.Client(t))
			output(t, program, "fill", server.Addr())
			moves, err := y.Park(t.Context(), "default", []string{"pending", "retry"}, time.Now().Add(time.Hour))
			if err != nil || !slices.Equal(moves, []bool{true, false}) || y.state("pending") != "scheduled" {
				t.Errorf("parked: %t, %v; pending is %s", moves, err, y.state("pending"))
			}
			if out := y.outcomes("pending"); out[0] != Moved {
				t.Errorf("what was parked is released: %d", out)
			}
			got := y.outcomes("retry", "none", "pending", "archived", "completed", "scheduled")
			if want := []Outcome{Moved, Gone, Pending, Elsewhere, Elsewhere, Moved}; !slices.Equal(got, want) {
				t.Errorf("outcomes %d, want %d", got, want)
			}
			for id, want := range map[string]string{"archived": "archived", "completed": "completed", "later": "scheduled"} {
				if got := y.state(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			if order := output(t, program, "drain", server.Addr(), "3"); !slices.Equal(order, []string{"retry", "scheduled", "pending"}) {
				t.Errorf("they ran in the order %q", order)
			}
			if got := y.state("scheduled"); !strings.Contains(got, "not found") {
				t.Errorf("a task that has run is %s", got)
			}
		})
	}
}

// buildWith builds testdata/releases against an asynq release, with the other
// modules as in go.mod where that release has no say, and returns the program's path.
func buildWith(t *testing.T, release string) string {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{
		"../../../go.mod": "go.mod", "../../../go.sum": "go.sum",
		"testdata/releases/main.go": "main.go",
	} {
		text, err := os.ReadFile(from)
		must(t, err)
		text = regexp.MustCompile(`(?m)^(\s+`+regexp.QuoteMeta(asynqModule)+`) v\S+$`).ReplaceAll(text, []byte("$1 "+release))
		must(t, os.WriteFile(filepath.Join(dir, to), text, 0o644))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", "releases", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("asynq %s can't be built: %v\n%s\ntry: go mod download %s@%s, where the module proxy can be reached; "+
			"-short leaves this test out", release, err, out, asynqModule, release)
	}
	return filepath.Join(dir, "releases")
}

// output runs the program and returns the lines that it prints.
func output(t *testing.T, program string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	if len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
