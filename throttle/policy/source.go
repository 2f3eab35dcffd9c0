package policy

import (
	"cmp"

	"github.com/headway-go/headway/internal/diag"
)

// Source describes how a part of a policy is written in a text, for NewFrom: a value, a mapping or a
// list. Package limitsyaml makes Sources from limits.yaml, and a program with its own format can
// make its own. The parts have their names in limits.yaml, and so do the paths of faults. A part
// without a Source is treated as made in Go.
type Source struct {
	// Line and Column are the place of faults, both from 1; 0 for none.
	Line, Column int
	// Text is the value as the author of the text would recognise it. If empty, faults print the Go
	// value.
	Text string
	// Bad says that its reader has found a fault of the value: New finds no other.
	Bad bool
	// Fields are the parts of a mapping that are present, by name: of a scope, or of a rule. Nil for
	// anything else.
	Fields map[string]*Source
	// Items are the elements of a list: rules, apps or hosts.
	Items []*Source
}

// under returns a field, nil if there is none.
func (s *Source) under(name string) *Source {
	if s == nil {
		return nil
	}
	return s.Fields[name]
}

// item returns an element of a list, nil if there is none.
func (s *Source) item(i int) *Source {
	if s == nil || i >= len(s.Items) {
		return nil
	}
	return s.Items[i]
}

func (s *Source) place() diag.Place {
	if s == nil {
		return diag.Place{}
	}
	return diag.Place{Line: int32(s.Line), Column: int32(s.Column)}
}

// field returns how a field is written. text and set describe the Go value, for a scope or a rule
// without a Source.
func (s *Source) field(name, text string, set bool) written {
	if s == nil {
		return written{text: text, set: set}
	}
	f := s.Fields[name]
	if f == nil {
		return written{}
	}
	return f.written(text)
}

func (s *Source) rule(f field, text string, set bool) written { return s.field(f.String(), text, set) }

func (s *Source) written(text string) written {
	return written{at: s.place(), text: cmp.Or(s.Text, text), set: true, bad: s.Bad}
}
