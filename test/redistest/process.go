package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const stopBound = 15 * time.Second

// program finds redis-server, or says how to get it.
func program() (string, error) {
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("redistest: these tests need a redis-server: %w\n"+
			"try: run make test, which installs it, or name the program in REDIS_SERVER", err)
	}
	return path, nil
}

// process is one run of redis-server.
type process struct {
	cmd     *exec.Cmd
	gone    <-chan struct{} // closed when the process has been waited for
	log     string
	logFrom int64 // where this run's lines begin in log
}

// run starts the program with its output appended to the file log.
func run(path string, args []string, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	defer out.Close()
	at, err := out.Stat()
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	p := &process{cmd: exec.Command(path, args...), log: log, logFrom: at.Size()}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if p.gone, err = StartChild(p.cmd); err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return p, nil
}

// StartChild starts a program that, on Linux, the kernel ends when the test binary dies. The channel is closed when the program
// has ended; cmd.ProcessState says how.
func StartChild(cmd *exec.Cmd) (<-chan struct{}, error) {
	cmd.SysProcAttr = childAttr()
	started, gone := make(chan error), make(chan struct{})
	go func() {
		// Linux sends the parent-death signal when the thread that started the
		// child ends, so that thread must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its error stands in ProcessState, too
			close(gone)
		}
	}()
	return gone, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone already
	<-p.gone
}

func (p *process) terminate() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it is gone already
	bound := time.NewTimer(Stretch(stopBound))
	defer bound.Stop()
	select {
	case <-p.gone:
		return nil
	case <-bound.C:
		err := p.failure(fmt.Sprintf("redis-server did not end within %v of SIGTERM", Stretch(stopBound)))
		p.kill()
		return err
	}
}

// failure is an error with the last lines that this run of the server wrote.
func (p *process) failure(what string) error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Errorf("redistest: %s: %w", what, err)
	}
	text = text[min(p.logFrom, int64(len(text))):]
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	lines = lines[max(0, len(lines)-20):]
	err = fmt.Errorf("redistest: %s; its last words:\n%s", what, bytes.Join(lines, []byte("\n")))
	if bytes.Contains(text, []byte("Address already in use")) {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}
