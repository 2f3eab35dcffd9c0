// Package bench holds benchmarks that run a peer beside us in the same run, and
// print one table of what they measured. docs/benchmarks.md explains it.
package bench

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(hogVariable) != "" {
		hog()
		return
	}
	if os.Getenv(aloneVariable) != "" {
		if err := alone(); err != nil {
			fmt.Fprintln(os.Stderr, "bench: asynq alone:", err)
		}
		return
	}
	code := programs.Main(func() int { return redistest.Main(m) })
	bullMQ.remove()
	if err := table.print(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

// The variables that the Makefile sets.
const (
	// scenariosVariable is "all" for every scenario. Otherwise there are only the short ones, which need nothing but Redis.
	scenariosVariable = "HEADWAY_BENCH_SCENARIOS"
	// tableVariable names a file for the table. Otherwise it is printed.
	tableVariable = "HEADWAY_BENCH_TABLE"
	// writeVariable, when set, writes the table into docs/benchmarks.md and draws docs/starts.svg.
	writeVariable = "HEADWAY_BENCH_WRITE"
)

// long says whether every scenario is wanted.
func long() bool { return os.Getenv(scenariosVariable) == "all" }

// writeFile writes a file, or with no name to standard output.
func writeFile(name, text string) error {
	if name == "" {
		_, err := io.WriteString(os.Stdout, text)
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644) //nolint:gosec // a page that anyone may read
}

var must = redistest.Must
