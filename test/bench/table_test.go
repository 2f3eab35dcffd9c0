package bench

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
)

// table gathers what the benchmarks of this run measured.
var table results

type results struct {
	mu    sync.Mutex
	rows  []figures.Row
	drawn map[string][]time.Duration // starts by who made them, for the picture
}

// add puts a row into the table, in the place of one for the same thing.
func (r *results) add(row figures.Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.rows, func(have figures.Row) bool { return have.Measure == row.Measure && have.Who == row.Who })
	if at < 0 {
		r.rows = append(r.rows, row)
	} else {
		r.rows[at] = row
	}
}

// draw keeps a run for the picture.
func (r *results) draw(who string, starts []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drawn == nil {
		r.drawn = map[string][]time.Duration{}
	}
	r.drawn[who] = starts
}

// byMeasure returns the rows with those of one measure together.
func (r *results) byMeasure() []figures.Row {
	var rows []figures.Row
	done := map[string]bool{}
	for _, first := range r.rows {
		for _, row := range r.rows {
			if !done[first.Measure] && row.Measure == first.Measure {
				rows = append(rows, row)
			}
		}
		done[first.Measure] = true
	}
	return rows
}

// print writes the table and, where it is asked for, the page and the picture.
func (r *results) print() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 {
		return nil
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s\n\n", machine())
	if err := figures.WriteTable(&out, r.byMeasure()); err != nil {
		return err
	}
	if err := writeFile(os.Getenv(tableVariable), "\n"+out.String()+"\n"); err != nil {
		return err
	}
	if os.Getenv(writeVariable) == "" {
		return nil
	}
	return r.document(out.String())
}

// Where the figures are written, from this directory.
const (
	page      = "../../docs/benchmarks.md"
	picture   = "../../docs/starts.svg"
	pageBegin = "<!-- the table begins: make bench WRITE=1 writes it -->"
	pageEnd   = "<!-- the table ends -->"
)

func (r *results) document(text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if some := flag.Lookup("test.bench").Value.String(); some != all {
		if text, err = r.merged(string(old), some); err != nil {
			return err
		}
	}
	anew, err := figures.Replace(string(old), pageBegin, pageEnd, "\n"+text+"\n")
	if err != nil {
		return err
	}
	if err := writeFile(page, anew); err != nil {
		return err
	}
	chart := startsChart(r.drawn)
	if len(chart.Panels) < 2 { // nothing beside ours
		return nil
	}
	return writeFile(picture, chart.SVG())
}

// all is the BENCH of a run of every benchmark.
const all = "."

// merged returns the page's table with the rows of a run of some benchmarks, and on what these were measured below the line
// that says so of the others.
func (r *results) merged(old, some string) (string, error) {
	text, err := figures.Between(old, pageBegin, pageEnd)
	if err != nil {
		return "", err
	}
	about, lines, found := strings.Cut(text, "\n| ")
	if !found {
		return "", errors.New("the page has no table: measure all with WRITE=1 first")
	}
	begins := "Measured later by BENCH=" + some + ": "
	var out strings.Builder
	for line := range strings.Lines(about) {
		if line != "\n" && !strings.HasPrefix(line, begins) {
			out.WriteString(line + "\n")
		}
	}
	out.WriteString(begins + machine() + "\n\n")
	if err := figures.Merge(&out, "| "+strings.TrimSuffix(lines, "\n"), r.byMeasure()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// machine says where and on what the figures were measured.
func machine() string {
	server := os.Getenv("REDIS_SERVER")
	if server == "" {
		server = "redis-server"
	}
	words := []string{
		runtime.GOOS + "/" + runtime.GOARCH, fmt.Sprintf("%d processors", runtime.NumCPU()), runtime.Version(),
		firstWords(server, 3, "--version"),
	}
	if bullMQ.version != "" {
		words = append(words, "BullMQ "+bullMQ.version+" on Node "+firstWords("node", 1, "--version"))
	}
	if !long() {
		words = append(words, "the short scenarios only")
	}
	return strings.Join(append(words, time.Now().UTC().Format(time.DateOnly)), ", ") + "."
}

// firstWords runs a program and returns the first words of what it says.
func firstWords(program string, n int, args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output() //nolint:gosec // the server that the tests run
	if err != nil {
		return program + " of unknown version"
	}
	words := strings.Fields(string(out))
	return strings.Join(words[:min(n, len(words))], " ")
}
