package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/redistest"
)

// small is a quickstart of ten tasks at an address of its own, played by fakes.
type small struct {
	dir, api string
	listener net.Listener // at api, held for the demo
}

func newSmall(t *testing.T, mode string, limit int) small {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	api := l.Addr().String()
	s := small{t.TempDir(), api, l}
	s.write(t, "mode", mode)
	s.write(t, "limits.yaml", fmt.Sprintf(
		"limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: %d, per: 1h}], scopes: {\"*\": {rules: [{name: each, algorithm: concurrency, limit: 5}]}}}}", limit))
	var lines bytes.Buffer
	for i := range 10 {
		var l task
		l.ID, l.Scope, l.Queue = fmt.Sprint("t", i), fmt.Sprint("p/", i%2), fmt.Sprint("q", 1+i%2)
		l.HTTP.URL = "http://" + api + countapi.Path(l.Scope)
		l.HTTP.Headers = map[string]string{"X-Task-Id": l.ID}
		must(t, json.NewEncoder(&lines).Encode(l))
	}
	s.write(t, "tasks.ndjson", lines.String())
	return s
}

func (s small) write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// run runs the demo and returns its exit code. What it writes stands in the files stdout and stderr.
func (s small) run(ctx context.Context, listen listener, more ...string) (code int) {
	stdout, err1 := os.Create(filepath.Join(s.dir, "stdout"))
	stderr, err2 := os.Create(filepath.Join(s.dir, "stderr"))
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	defer stdout.Close()
	defer stderr.Close()
	args := []string{"-dir", s.dir, "-api", s.api, "-worker", os.Args[0], "-enqueue", os.Args[0]}
	return run(ctx, listen, append(args, more...), stdout, stderr)
}

func (s small) listen(_, _ string) (net.Listener, error) { return s.listener, nil }

// wrote is what stands in stdout and stderr.
func (s small) wrote() (stdout, stderr string) {
	out, _ := os.ReadFile(filepath.Join(s.dir, "stdout"))
	err, _ := os.ReadFile(filepath.Join(s.dir, "stderr"))
	return string(out), string(err)
}

var must = redistest.Must

// says holds that text has all of parts.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in:\n%s", part, text)
		}
	}
}

func TestAllIsWell(t *testing.T) {
	t.Parallel()
	s := newSmall(t, "ok", 10)
	log := filepath.Join(s.dir, "log")
	code := s.run(t.Context(), s.listen, "-log", log)
	stdout, stderr := s.wrote()
	says(t, strings.Join(strings.Fields(stdout), " "), "p all sliding-window 10/1h 10 10 10 of 10 - 0")
	says(t, stdout, "10 calls, 10 tasks, pick-ups a task 1.00, lost 0, twice 0", legend)
	const verdict = "No limit was exceeded and nothing was lost: 10 calls of 10 tasks, judged from the API's own log.\n"
	if code != 0 || !strings.HasPrefix(stdout, verdict) {
		t.Errorf("exit code %d, and the results do not begin with the verdict:\n%s", code, stdout)
	}
	says(t, stderr, "enqueued 10 tasks of 2 queues in ", "10 of 10 done  10 calls", "fullest p all: 10 of 10")
	if strings.Contains(stderr, "fake worker runs") || strings.Contains(stderr, "\r") {
		t.Errorf("worker's log without -v, or a rewritten line without a terminal:\n%s", stderr)
	}
	f, err := os.Open(log)
	must(t, err)
	defer f.Close()
	if _, calls, err := countapi.ReadLog(f); err != nil || len(calls) != 10 {
		t.Errorf("log of %d calls, %v", len(calls), err)
	}
}

func TestWhatIsWrongIsToldAndFails(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		limit          int
		stdout, stderr string
	}{
		"ok":              {9, "WRONG: p all: 10 units in the 1h0m0s from", ""},
		"loses one":       {10, `WRONG: 1 ids never arrived with success: ["t3"]`, "no call has arrived for 3s; 9 of 10 tasks have"},
		"sends one twice": {11, `WRONG: 1 ids arrived with success more than once: ["t3"]`, ""},
		"dies":            {10, "WRONG: 7 ids never arrived", "panic: out of luck"},
		"ends badly":      {10, "10 calls", "a task was left behind"},
		"refuses":         {10, "", "127.0.0.1:6390: address already in use"},
		"enqueue fails":   {10, "", "tasks.ndjson:3: not a task"},
	}
	for mode, tt := range tests {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSmall(t, mode, tt.limit)
			code := s.run(t.Context(), s.listen, "-idle", "3s")
			stdout, stderr := s.wrote()
			if code != 1 || strings.Contains(stdout, "No limit was exceeded") || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d:\n%s\nstderr:\n%s", code, stdout, stderr)
			}
		})
	}
}

func TestInterruptEndsTheWorker(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"never ready", "loses one"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSmall(t, mode, 10)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			code := make(chan int)
			go func() { code <- s.run(ctx, s.listen, "-v") }()
			var pid int
			redistest.WaitFor(t, "worker to say its pid, and tasks", 2*time.Minute, func() bool {
				_, stderr := s.wrote()
				if _, said, ok := strings.Cut(stderr, "fake worker runs as "); ok {
					_, _ = fmt.Sscanln(said, &pid)
				}
				return pid > 0 && (mode == "never ready" || strings.Contains(stderr, "enqueued"))
			})
			cancel()
			if got := <-code; got != 130 {
				t.Errorf("exit code %d, want 130", got)
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Error("worker is still there")
			}
			if stdout, _ := s.wrote(); stdout != "" {
				t.Errorf("results of an interrupted demo:\n%s", stdout)
			}
		})
	}
}

func TestATakenPortIsTold(t *testing.T) {
	t.Parallel()
	s := newSmall(t, "ok", 10)
	code := s.run(t.Context(), net.Listen) // while s holds the port
	stdout, stderr := s.wrote()
	if code != 1 || stdout != "" {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	says(t, stderr, "the outbound API cannot listen at "+s.api+": something else does", "try: ")
}

func TestPickUpsAreAddedUp(t *testing.T) {
	t.Parallel()
	n, err := pickUps("# HELP x\nheadway_pickups_total{queue=\"a\"} 3\nheadway_pickups_total{queue=\"b\",x=\"y\"} 4e0\nheadway_pickups_total_other{queue=\"a\"} 9\n")
	if n != 7 || err != nil {
		t.Errorf("%v, %v, want 7", n, err)
	}
	if _, err := pickUps("nothing"); err == nil {
		t.Error("no metric is no error")
	}
}

// The plot has a row for each window from the first call of the provider on, empty ones too, and leaves other providers out.
func TestPlot(t *testing.T) {
	t.Parallel()
	rep := &checker.Report{Rows: []checker.Row{
		{Scope: "pay/acme", Rule: "tenant", Algorithm: "sliding-window", Limit: 1, Per: time.Second},
		{Scope: "pay", Rule: "account", Algorithm: "sliding-window", Limit: 4, Per: 2 * time.Second},
	}}
	calls := []countapi.Call{
		{Scope: "pay/acme", Cost: 1, Arrived: 6500 * time.Millisecond}, // in the order in which answers left
		{Scope: "search/acme", Cost: 1, Arrived: 100 * time.Millisecond},
		{Scope: "pay/acme", Cost: 3, Arrived: 2 * time.Second}, {Scope: "pay", Cost: 1, Arrived: 3 * time.Second},
		{Scope: "payments", Cost: 1, Arrived: 3 * time.Second},
	}
	var b strings.Builder
	must(t, plot(&b, rep, calls))
	want := "\nCalls to pay in each 2s, under its limit of 4:\n" +
		"    0 s  " + strings.Repeat("#", 40) + "| 4\n" +
		"    2 s  " + strings.Repeat(" ", 40) + "| 0\n" +
		"    4 s  " + strings.Repeat("#", 10) + strings.Repeat(" ", 30) + "| 1\n"
	if b.String() != want {
		t.Errorf("got %s\nwant %s", b.String(), want)
	}
	b.Reset()
	if err := plot(&b, &checker.Report{}, calls); err != nil || b.Len() > 0 {
		t.Errorf("without a rule: %q, %v", b.String(), err)
	}
}
