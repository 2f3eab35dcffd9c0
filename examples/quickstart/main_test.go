package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err := json.NewEncoder(&lines).Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	s.write(t, "tasks.ndjson", lines.String())
	return s
}

func (s small) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs the demo and returns its exit code and what it wrote.
func (s small) run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err syncBuffer
	code = run(ctx, s.listen, s.args(args...), &out, &err)
	return code, out.String(), err.String()
}

func (s small) listen(_, _ string) (net.Listener, error) { return s.listener, nil }

func (s small) args(more ...string) []string {
	return append([]string{"-dir", s.dir, "-api", s.api, "-worker", os.Args[0], "-enqueue", os.Args[0]}, more...)
}

// syncBuffer may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// must fails t unless text has all of parts.
func must(t *testing.T, text string, parts ...string) {
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
	code, stdout, stderr := s.run(t.Context(), "-log", log)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	must(t, strings.Join(strings.Fields(stdout), " "), "p all sliding-window 10/1h 10 10 10 of 10 - 1.00 0")
	must(t, stdout,
		"10 calls, 10 tasks, pick-ups a task 1.00, lost 0, twice 0", legend)
	if want := "No limit was exceeded and nothing was lost: 10 calls of 10 tasks, judged from the API's own log.\n"; !strings.HasPrefix(stdout, want) {
		t.Errorf("the results do not begin with %q:\n%s", want, stdout)
	}
	must(t, stderr, "enqueued 10 tasks of 2 queues in ", "10 of 10 done  10 calls", "fullest p all: 10 of 10")
	if strings.Contains(stderr, "fake worker runs") || strings.Contains(stderr, "\r") {
		t.Errorf("worker's log without -v, or a rewritten line without a terminal:\n%s", stderr)
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
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
			code, stdout, stderr := newSmall(t, mode, tt.limit).run(t.Context(), "-idle", "3s")
			if code != 1 || strings.Contains(stdout, "No limit was exceeded") {
				t.Errorf("exit code %d:\n%s", code, stdout)
			}
			defer func() {
				if t.Failed() {
					t.Logf("stderr:\n%s", stderr)
				}
			}()
			must(t, stdout, tt.stdout)
			must(t, stderr, tt.stderr)
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
			var stdout, stderr syncBuffer
			code := make(chan int)
			go func() {
				code <- run(ctx, s.listen, s.args("-v"), &stdout, &stderr)
			}()
			said := regexp.MustCompile(`fake worker runs as (\d+)`)
			redistest.WaitFor(t, "worker to say its pid", 2*time.Minute, func() bool { return said.MatchString(stderr.String()) })
			if mode == "loses one" {
				redistest.WaitFor(t, "tasks", 2*time.Minute, func() bool { return strings.Contains(stderr.String(), "enqueued") })
			}
			cancel()
			if got := <-code; got != 130 {
				t.Errorf("exit code %d, want 130", got)
			}
			pid, err := strconv.Atoi(said.FindStringSubmatch(stderr.String())[1])
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Error("worker is still there")
			}
			if stdout.String() != "" {
				t.Errorf("results of an interrupted demo:\n%s", stdout.String())
			}
		})
	}
}

func TestATakenPortIsTold(t *testing.T) {
	t.Parallel()
	s := newSmall(t, "ok", 10)
	var stdout, stderr syncBuffer
	code := run(t.Context(), net.Listen, s.args(), &stdout, &stderr) // while s holds the port
	if code != 1 || stdout.String() != "" {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
	must(t, stderr.String(), "the outbound API cannot listen at "+s.api+": something else does", "try: ")
}

func TestPickUpsAreReadByScope(t *testing.T) {
	t.Parallel()
	byQueue, err := pickUps("# HELP x\nheadway_pickups_total{queue=\"a\"} 3\nheadway_pickups_total{queue=\"b\",x=\"y\"} 4e0\n" +
		"headway_pickups_total_other{queue=\"a\"} 9\nheadway_pickups_total{queue=\"mixed\"} 5\n")
	if want := map[string]float64{"a": 3, "b": 4, "mixed": 5}; err != nil || !reflect.DeepEqual(byQueue, want) {
		t.Errorf("%v, %v, want %v", byQueue, err, want)
	}
	if _, err := pickUps("nothing"); err == nil {
		t.Error("no metric is no error")
	}
	got := byScope(byQueue, []checker.Task{
		{Scope: "p/x/1", Queue: "a"}, {Scope: "p/x/2", Queue: "b"}, {Scope: "p/x/2", Queue: "b"},
		{Scope: "s/y", Queue: "mixed"}, {Scope: "s/z", Queue: "mixed"},
	})
	want := map[string]float64{"": 12, "p": 7, "p/x": 7, "p/x/1": 3, "p/x/2": 4, "s": 5}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
