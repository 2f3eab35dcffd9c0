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
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen: four times as long as was
// seen where seven programs waited for each core.
const bound = 2 * time.Minute

// waiting is how many tests run at once, unless -parallel says otherwise: most
// of them wait more than they work.
const waiting = "6"

var binaries string // the directory that the programs are built into

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	redis.SetLogger(nobody{}) // outages are part of the tests
	os.Exit(withBinaries(func() int { return redistest.Main(m) }))
}

type nobody struct{}

func (nobody) Printf(context.Context, string, ...any) {}

// withBinaries builds the programs, once for all tests.
func withBinaries(tests func() int) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "../../cmd/worker", "../../cmd/enqueue").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: build the programs: %v\n%s", err, out)
		return 1
	}
	binaries = dir
	return tests()
}

// program is one of ours while it runs.
type program struct {
	t              *testing.T
	name           string
	cmd            *exec.Cmd
	stdout, stderr *output
	gone           chan struct{}
}

// output keeps what a program says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs a program; it is killed when the test ends, if it has not by then.
func start(t *testing.T, stdin io.Reader, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, name: name, cmd: exec.Command(filepath.Join(binaries, name), args...),
		stdout: &output{}, stderr: &output{}, gone: make(chan struct{})}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, p.stdout, p.stderr
	p.cmd.SysProcAttr = childAttr()
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDIS_URL=") || strings.HasPrefix(v, "HEADWAY_")
	})
	started := make(chan error)
	go func() {
		// On Linux the child ends with the thread that started it, see childAttr.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // what it says is in ProcessState
			close(p.gone)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %q said\n%s%s", name, args, tail(p.stdout), tail(p.stderr))
		}
	})
	return p
}

func tail(o *output) string {
	text := o.String()
	return text[max(0, len(text)-4096):]
}

// kill ends the program as a crash would.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone already
	<-p.gone
}

func (p *program) terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// says waits until stderr has text.
func (p *program) says(text string) {
	p.t.Helper()
	redistest.WaitFor(p.t, fmt.Sprintf("%s to say %q", p.name, text), bound, func() bool {
		select {
		case <-p.gone:
			if !strings.Contains(p.stderr.String(), text) {
				p.t.Fatalf("%s ended with %v and has not said %q", p.name, p.cmd.ProcessState, text)
			}
		default:
		}
		return strings.Contains(p.stderr.String(), text)
	})
}

// ends waits until the program has ended, and fails the test unless its exit
// code is the one wanted.
func (p *program) ends(code int) {
	p.t.Helper()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-timer.C:
		p.t.Fatalf("%s has not ended within %v", p.name, bound)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ended with %v, want exit code %d", p.name, p.cmd.ProcessState, code)
	}
}

// run runs a program to its end.
func run(t *testing.T, code int, stdin io.Reader, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	p := start(t, stdin, name, args...)
	p.ends(code)
	return p.stdout.String(), p.stderr.String()
}

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
