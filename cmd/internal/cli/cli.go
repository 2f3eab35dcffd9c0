// Package cli holds what the commands share: how they name what went wrong
// and what to try, how they reach Redis, and how they end.
//
// A command is a function run(ctx, args, getenv, stdout, stderr) int. Results
// go to stdout, everything else to stderr, and nothing here calls os.Exit.
package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit codes of every command.
const (
	ExitOK          = 0   // done
	ExitFailed      = 1   // something failed
	ExitUsage       = 2   // bad usage: nothing was tried
	ExitInterrupted = 130 // ended by a signal
)

// Error is a failure as a person reads it: what happened, and what to do about
// it. Neither ever holds a password or a URL that has one.
type Error struct {
	What string // one sentence without a full stop
	Try  string // what to type or change instead; may be empty
	Err  error  // the cause, for errors.Is and errors.As; never printed
}

// Error returns What, and Try in brackets when there is one.
func (e *Error) Error() string {
	if e.Try == "" {
		return e.What
	}
	return e.What + " (try: " + e.Try + ")"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error without a cause whose What is formatted from format
// and args.
func Errorf(try, format string, args ...any) *Error {
	return &Error{What: fmt.Sprintf(format, args...), Try: try}
}

// Fail prints err to stderr as lines that start with prog, each followed by a
// "try:" line where err, or an error it wraps, is an *Error. Errors joined by
// errors.Join, and lines of one error, are printed one below the other, each as Escape
// writes it.
func Fail(stderr io.Writer, prog string, err error) {
	var b bytes.Buffer
	writeFault(&b, prog, err)
	_, _ = stderr.Write(b.Bytes()) // one write, so that logs do not cut it in two
}

func writeFault(b *bytes.Buffer, prog string, err error) {
	// Only a joined error is taken apart, never a chain that hides one: its
	// own words would be lost.
	if joined, ok := err.(interface{ Unwrap() []error }); ok && isJoin(err, joined.Unwrap()) {
		for _, e := range joined.Unwrap() {
			writeFault(b, prog, e)
		}
		return
	}
	what, try := err.Error(), ""
	var told *Error
	if errors.As(err, &told) {
		// A wrapper's words stay; the advice moves to its own line.
		what, try = strings.Replace(what, told.Error(), told.What, 1), told.Try
	}
	for line := range strings.Lines(what) {
		fmt.Fprintf(b, "%s: %s\n", prog, Escape(strings.TrimSuffix(line, "\n")))
	}
	for line := range strings.Lines(try) {
		fmt.Fprintf(b, "try: %s\n", Escape(strings.TrimSuffix(line, "\n")))
	}
}

// isJoin reports whether err says nothing but what parts say, a line each.
func isJoin(err error, parts []error) bool {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Error()
	}
	return err.Error() == strings.Join(texts, "\n")
}
