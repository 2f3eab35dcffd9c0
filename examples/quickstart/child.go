package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is one of the programs while it runs.
type child struct {
	cmd  *exec.Cmd
	said *lastWords
	gone chan struct{} // closed when it has ended
	err  error         // how it ended; to be read after gone
}

// startChild starts a program whose output is kept, and written to show as it comes unless that is nil.
func startChild(path string, show io.Writer, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(path, args...), said: &lastWords{show: show}, gone: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = c.said, c.said
	c.cmd.SysProcAttr = childAttr()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "REDIS_URL=") { // the demo has a Redis of its own
			c.cmd.Env = append(c.cmd.Env, v)
		}
	}
	started := make(chan error)
	go func() {
		// On Linux the child ends with the thread that started it, see childAttr.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.gone)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// end asks the program to end, kills it when it has not within bound, and returns how it ended.
func (c *child) end(bound time.Duration) error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails only when it is gone already
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c.gone:
		return c.err
	case <-timer.C:
		_ = c.cmd.Process.Kill() // fails only when it is gone already
		<-c.gone
		return fmt.Errorf("did not end within %v and was killed", bound)
	}
}

// early is the error of a worker that ended before its time.
func (c *child) early() error {
	return errors.Join(errors.New("worker ended before its time"), c.err)
}

func (c *child) tail() string { return c.said.tail() }

// lastWords keeps the end of what is written to it.
type lastWords struct {
	show io.Writer

	mu   sync.Mutex
	text []byte
	addr string // where worker listens, by its log
}

var listening = regexp.MustCompile(`msg=listening addr=(\S+)\s`)

// keep is how many bytes are shown when something went wrong.
const keep = 8 << 10

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if said := listening.FindSubmatch(l.text); l.addr == "" && said != nil {
		l.addr = string(said[1])
	}
	if len(l.text) > 2*keep {
		l.text = append(l.text[:0], l.text[len(l.text)-keep:]...)
	}
	if l.show == nil {
		return len(p), nil
	}
	return l.show.Write(p)
}

// listensAt returns worker's host:port, "" before it has logged that.
func (l *lastWords) listensAt() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

func (l *lastWords) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.text[max(0, len(l.text)-keep):]))
}
