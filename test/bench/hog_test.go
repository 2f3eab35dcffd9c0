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

// hog uses a processor until the program that started it ends, or says so.
func hog() {
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	for !ended.Load() {
	}
}

// hogs starts n programs that each use a processor, and returns what ends them.
func hogs(b *testing.B, n int) (end func()) {
	b.Helper()
	var ends []func()
	for range n {
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
		cmd.Env = append(os.Environ(), hogVariable+"=1")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		ends = append(ends, func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}
