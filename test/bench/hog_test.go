package bench

import (
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
)

// hogVariable makes this program one that does nothing but use a processor.
const hogVariable = "HEADWAY_BENCH_HOG"

// hog uses a processor until its standard input ends.
func hog() {
	var ended atomic.Bool
	go func() {
		waitForEnd()
		ended.Store(true)
	}()
	for !ended.Load() {
	}
}

// hogs starts n programs that each use a processor, and returns what ends them.
func hogs(t testing.TB, n int) (end func()) {
	t.Helper()
	end, err := copies(n, hogVariable+"=1")
	must(t, err)
	return end
}

// waitForEnd returns when the program that started this one ends it, or is gone.
func waitForEnd() { _, _ = io.Copy(io.Discard, os.Stdin) }

// copies starts this program n times more, with variables that say what to do until waitForEnd, and returns what ends them.
func copies(n int, variables ...string) (end func(), err error) {
	var ends []func()
	end = func() {
		for _, end := range ends {
			end()
		}
	}
	for range n {
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
		cmd.Env, cmd.Stderr = append(os.Environ(), variables...), os.Stderr
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			end()
			return nil, err
		}
		ends = append(ends, func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
	}
	return end, nil
}
