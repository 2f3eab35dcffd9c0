// Package programs builds worker and enqueue and runs them as people do, for the tests of several packages.
//
// A package that runs them writes
//
//	func TestMain(m *testing.M) {
//		os.Exit(programs.Main(func() int { return redistest.Main(m) }))
//	}
//
// The package imports testing and may be imported by tests only.
package programs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// Bound is how long tests wait for what must happen: four times as long as was
// seen where seven programs waited for each core, and longer on a slow machine.
var Bound = redistest.Stretch(2 * time.Minute)

var directory string // what the programs are built into

// Main runs tests, with a directory for the programs that it removes again, and returns their
// exit code, or 1 where there is no room for one.
func Main(tests func() int) int {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	directory = dir
	return tests()
}

// build builds both programs, once, in their own module: test/bench asks for other versions of what they import.
var build = sync.OnceValue(func() error {
	const module = "github.com/headway-go/headway"
	top, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("programs: find %s: %w", module, err)
	}
	goBuild := exec.Command("go", "build", "-o", directory+string(filepath.Separator), module+"/cmd/worker", module+"/cmd/enqueue")
	goBuild.Dir = strings.TrimSpace(string(top))
	if out, err := goBuild.CombinedOutput(); err != nil {
		return fmt.Errorf("programs: build worker and enqueue: %w\n%s", err, out)
	}
	return nil
})

// Program is one of ours while it runs.
type Program struct {
	// Stdout and Stderr are what it has written so far.
	Stdout, Stderr *Output

	t    testing.TB
	name string
	cmd  *exec.Cmd
	gone <-chan struct{}
}

// Output keeps what a program writes. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// tail is the last of it.
func (o *Output) tail() string {
	text := o.String()
	return text[max(0, len(text)-4096):]
}

// Path is that of a built program, "worker" or "enqueue"; the first call builds both.
func Path(t testing.TB, name string) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(directory, name)
}

// Start runs a program, "worker" or "enqueue"; the first call builds both. It is killed when the
// test ends, if it has not ended by then. Its environment has no REDIS_URL and no HEADWAY_ variables.
func Start(t testing.TB, stdin io.Reader, name string, args ...string) *Program {
	t.Helper()
	return StartIn(t, nil, stdin, name, args...)
}

// StartIn is Start with more of an environment.
func StartIn(t testing.TB, env []string, stdin io.Reader, name string, args ...string) *Program {
	t.Helper()
	p := &Program{
		t: t, name: name, cmd: exec.Command(Path(t, name), args...),
		Stdout: &Output{}, Stderr: &Output{},
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, p.Stdout, p.Stderr
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDIS_URL=") || strings.HasPrefix(v, "HEADWAY_")
	}), env...)
	var err error
	if p.gone, err = redistest.StartChild(p.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s %q said\n%s%s", name, args, p.Stdout.tail(), p.Stderr.tail())
		}
	})
	return p
}

// Kill ends the program as a crash would, and returns when it is gone.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone already
	<-p.gone
}

// Terminate sends SIGTERM.
func (p *Program) Terminate() { p.Signal(syscall.SIGTERM) }

// Signal sends a signal; a program that has ended gets none.
func (p *Program) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Says waits until stderr has text, and fails the test if it has not within Bound or when the program ends.
func (p *Program) Says(text string) {
	p.t.Helper()
	redistest.WaitFor(p.t, fmt.Sprintf("%s to say %q", p.name, text), Bound, func() bool {
		select {
		case <-p.gone:
			if !strings.Contains(p.Stderr.String(), text) {
				p.t.Fatalf("%s ended with %v and has not said %q", p.name, p.cmd.ProcessState, text)
			}
		default:
		}
		return strings.Contains(p.Stderr.String(), text)
	})
}

// Ends waits until the program has ended, Bound at most, and fails the test unless its exit code is the one wanted.
func (p *Program) Ends(code int) {
	p.t.Helper()
	timer := time.NewTimer(Bound)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-timer.C:
		p.t.Fatalf("%s has not ended within %v", p.name, Bound)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ended with %v, want exit code %d", p.name, p.cmd.ProcessState, code)
	}
}

// Run runs a program to its end and fails the test unless its exit code is the one wanted.
func Run(t testing.TB, code int, stdin io.Reader, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	p := Start(t, stdin, name, args...)
	p.Ends(code)
	return p.Stdout.String(), p.Stderr.String()
}
