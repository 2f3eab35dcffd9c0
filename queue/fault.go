package queue

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is one fault of a task.
type Fault struct {
	// Field is the field's name in an NDJSON line, such as "http.url". It is empty if the line as a whole is at fault.
	Field string
	// Reason says what is wrong and what to write instead.
	Reason string
	// Err is the cause if another package refused the value: a *policy.ScopeError, *policy.UnmatchedError
	// or *policy.CostError. Otherwise nil.
	Err error
}

// String returns "field: reason".
func (f Fault) String() string {
	if f.Field == "" {
		return f.Reason
	}
	return f.Field + ": " + f.Reason
}

// InvalidError is the error of a refused task: its faults, at most the first 20. Nothing was enqueued,
// and the same task would be refused again.
type InvalidError struct{ Faults []Fault }

// Error lists every fault on one line.
func (e *InvalidError) Error() string { return "queue: invalid task: " + e.Reasons() }

// Reasons lists every fault on one line, without a prefix.
func (e *InvalidError) Reasons() string {
	texts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the causes, so that errors.As finds a *policy.CostError.
func (e *InvalidError) Unwrap() []error {
	var errs []error
	for _, f := range e.Faults {
		if f.Err != nil {
			errs = append(errs, f.Err)
		}
	}
	return errs
}

// faults collects the faults found while a task is read or checked: the first maxFaults, and whether there are more.
type faults []Fault

const maxFaults = 20

func (f *faults) add(field, format string, args ...any) {
	switch {
	case len(*f) < maxFaults:
		*f = append(*f, Fault{Field: field, Reason: fmt.Sprintf(format, args...)})
	case len(*f) == maxFaults:
		*f = append(*f, Fault{Reason: "and more; mend these first"})
	}
}

// has reports whether a field, or a part of it, already has a fault, so that one mistake is reported once.
func (f faults) has(field string) bool {
	return slices.ContainsFunc(f, func(fault Fault) bool {
		return fault.Field == field || strings.HasPrefix(fault.Field, field+".")
	})
}

func (f faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return &InvalidError{Faults: f}
}
