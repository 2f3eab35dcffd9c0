// Package cli holds what the commands share on top of cobra: how they name what went wrong and what to
// try, how they reach Redis, and how they print and end.
//
// A program is a function run(ctx, args, getenv, stdout, stderr) int. Results go to stdout, everything else to stderr.
package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/headway-go/headway/internal/diag"
)

// Exit codes of every command.
const (
	ExitOK          = 0   // done
	ExitFailed      = 1   // something failed
	ExitUsage       = 2   // bad usage: nothing was tried
	ExitInterrupted = 130 // ended by a signal
)

// DefaultMaxTimeout is how long a run may take at most, unless the worker has another -max-timeout.
const DefaultMaxTimeout = 10 * time.Minute

// Error is a failure as a person reads it, and what to do about it.
type Error = diag.Error

// Errorf returns an Error without a cause whose What is formatted from format and args.
func Errorf(try, format string, args ...any) *Error { return diag.Errorf(try, format, args...) }

// ErrPrinted is the error of a command whose results say what failed. Nothing more is printed, and the exit code is ExitFailed.
var ErrPrinted = errors.New("the results say what failed")

// usageError marks an error of what was typed, such as a URL that is none.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as bad usage, which ends a program with ExitUsage. It returns nil for nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Fail prints err to stderr as lines that start with prog, followed by a "try:" line where err, or an
// error it wraps, is an *Error. Joined errors are printed one below the other, escaped.
func Fail(stderr io.Writer, prog string, err error) {
	var b bytes.Buffer
	writeFault(&b, prog, err)
	_, _ = stderr.Write(b.Bytes()) // one write, so that logs do not cut it in two
}

func writeFault(b *bytes.Buffer, prog string, err error) {
	if joined, is := err.(interface{ Unwrap() []error }); is && isJoin(err, joined.Unwrap()) {
		for _, e := range joined.Unwrap() {
			writeFault(b, prog, e)
		}
		return
	}
	what, try := err.Error(), ""
	if e, is := errors.AsType[*Error](err); is {
		// The words of a wrapper stay; the advice moves to a line of its own.
		what, try = strings.Replace(what, e.Error(), e.What, 1), e.Try
	}
	for line := range strings.Lines(what) {
		fmt.Fprintf(b, "%s: %s\n", prog, Escape(strings.TrimSuffix(line, "\n")))
	}
	for line := range strings.Lines(try) {
		fmt.Fprintf(b, "try: %s\n", Escape(strings.TrimSuffix(line, "\n")))
	}
}

// isJoin reports whether err says nothing but what parts say, a line each: the words of any other wrapper
// of several errors would be lost.
func isJoin(err error, parts []error) bool {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Error()
	}
	return err.Error() == strings.Join(texts, "\n")
}

// Interruptible returns a context that the first SIGINT or SIGTERM ends, so that work can end in good
// order: context.Cause names the signal. The second one ends the program with ExitInterrupted.
func Interruptible() context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		cancel(fmt.Errorf("interrupted by signal: %s", <-signals))
		<-signals
		os.Exit(ExitInterrupted)
	}()
	return ctx
}

// Version returns the version of the module that this binary was built from, which go build takes from
// tags and commits, or "devel". It needs no linker flags.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
