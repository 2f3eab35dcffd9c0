// Package diag reports the faults of something that a person wrote: a file, or a tree of values made in Go. It collects every
// fault, with its place and what to do about it, so that all of them can be corrected at once. It knows no file format.
package diag

import (
	"cmp"
	"fmt"
	"slices"
)

// Fault is one fault of a file: its place, the reason, and what to write instead.
type Fault struct {
	// Line and Column are the place of the fault in the text, both from 1. A column counts characters. Both are 0 in what was not
	// read from text.
	Line, Column int
	// Path is the place in the tree, such as limits.payments.scopes."*".rules[0].limit; empty for the text as a whole.
	Path string
	// Reason is what is wrong and, after a semicolon, what to do about it.
	Reason string
}

// String returns the fault on one line: "12:5: limits.payments: reason".
func (f Fault) String() string {
	text := f.Reason
	if f.Path != "" {
		text = f.Path + ": " + text
	}
	if f.Line > 0 {
		text = fmt.Sprintf("%d:%d: %s", f.Line, f.Column, text)
	}
	return text
}

// Place is a position in a text. The zero Place is none.
type Place struct{ Line, Column int32 }

// Start is the place of faults of a whole file.
var Start = Place{Line: 1, Column: 1}

// MaxFaults is the maximum number of faults that are kept, which bounds the memory that a file full of faults takes.
const MaxFaults = 10_000

// Faults collects the faults of a file, and counts those after MaxFaults. The zero Faults is ready to use. It is not safe for
// concurrent use.
type Faults struct {
	list   []Fault
	missed int
}

// None reports whether there is no fault.
func (l *Faults) None() bool { return len(l.list) == 0 }

// Add adds a fault.
func (l *Faults) Add(at Place, path, reason string) {
	if len(l.list) >= MaxFaults {
		l.missed++
		return
	}
	l.list = append(l.list, Fault{Line: int(at.Line), Column: int(at.Column), Path: path, Reason: reason})
}

// Join adds what All of another collector returned.
func (l *Faults) Join(all []Fault) { l.list = append(l.list, all...) }

// All returns the faults in the order of the text. After MaxFaults, a last fault gives the number of further ones.
func (l *Faults) All() []Fault {
	slices.SortStableFunc(l.list, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	if l.missed == 0 || len(l.list) > MaxFaults {
		return l.list
	}
	last := l.list[len(l.list)-1]
	last.Path, last.Reason = "", fmt.Sprintf("%d more faults are not listed; correct these first", l.missed)
	return append(l.list, last)
}
