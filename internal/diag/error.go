package diag

import "fmt"

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

// Errorf returns an Error without a cause whose What is formatted from format and args.
func Errorf(try, format string, args ...any) *Error {
	return &Error{What: fmt.Sprintf(format, args...), Try: try}
}
