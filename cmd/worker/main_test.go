package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // and exits
	}
	cli.RouteRedisLog(nil)
	os.Exit(redistest.Main(m))
}

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

// fakeSystem stands for what runs tasks.
type fakeSystem struct {
	err     error         // of Start
	started chan struct{} // closed by Start
	drained chan struct{} // Shutdown returns when it is closed
}

func newFakeSystem() *fakeSystem {
	f := &fakeSystem{started: make(chan struct{}), drained: make(chan struct{})}
	close(f.drained)
	return f
}

func (f *fakeSystem) Start() error { close(f.started); return f.err }
func (f *fakeSystem) Stop()        {}
func (f *fakeSystem) Shutdown()    { <-f.drained }

// running is one run of the program.
type running struct {
	t              *testing.T
	stdout, stderr programs.Output
	stop           context.CancelFunc
	code           chan int
}

func start(t *testing.T, p program, env map[string]string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &running{t: t, stop: cancel, code: make(chan int, 1)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr of worker %q:\n%s", args, r.stderr.String())
		}
	})
	for name, value := range env {
		p.environ = append(p.environ, name+"="+value)
	}
	go func() {
		r.code <- p.run(ctx, args, func(k string) string { return env[k] }, &r.stdout, &r.stderr)
	}()
	return r
}

// ends waits for the end and its code.
func (r *running) ends(want int) {
	r.t.Helper()
	select {
	case got := <-r.code:
		if got != want {
			r.t.Errorf("exit code %d, want %d", got, want)
		}
	case <-time.After(bound):
		r.t.Fatal("does not end")
	}
}

// quits stops it, and waits for its end.
func (r *running) quits() {
	r.t.Helper()
	r.stop()
	r.ends(cli.ExitOK)
}

// says waits for a line on stderr.
func (r *running) says(text string) {
	r.t.Helper()
	redistest.WaitFor(r.t, "the worker to say "+text, bound, func() bool {
		return strings.Contains(r.stderr.String(), text)
	})
}

// ask runs the program, and wants an exit code.
func ask(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	return askIn(t, nil, code, args...)
}

// askIn runs it in an environment.
func askIn(t *testing.T, env map[string]string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs); got != code {
		t.Fatalf("%q: exit %d, want %d; stdout %q, stderr %q", args, got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// objects reads the objects that the program prints.
func objects(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		all = append(all, v)
	}
	return all
}

func noEnv(string) string { return "" }

func limitsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	settled := time.Now().Add(-time.Minute) // nobody is writing it any more
	must(t, os.Chtimes(path, settled, settled))
	return path
}

const someLimits = "limits:\n  payments:\n    rules:\n      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}\n"

// ownRedis is a server of the test's own: the published policy has one key.
func ownRedis(t *testing.T) string {
	t.Helper()
	return "redis://" + redistest.NewServer(t).Addr()
}

// ownClient has a client of that server too.
func ownClient(t *testing.T) (string, redis.UniversalClient) {
	t.Helper()
	url := ownRedis(t)
	return url, open(t, url)
}

func with(f *fakeSystem) program {
	return program{embeddedAddr: "127.0.0.1:0", assemble: func(*worker.Limits, options, *slog.Logger) (system, error) { return f, nil }}
}

var must = redistest.Must
