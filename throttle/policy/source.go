package policy

import (
	"cmp"

	"github.com/headway-go/headway/internal/diag"
)

// Source says how a part of a policy is written in a text, for NewFrom: a value, a mapping or a list. Package limitsyaml makes
// one of limits.yaml, and a program with a format of its own another; its parts have the names that limits.yaml has for them,
// as do the paths of faults. A part without a Source is taken as one that was made in Go.
type Source struct {
	// Line and Column are where faults are shown, both from 1; 0 for nowhere.
	Line, Column int
	// Text is a value as its reader would recognise it; empty for what Go makes of the value.
	Text string
	// Bad says that its reader has found a fault of the value: New finds no other.
	Bad bool
	// Fields are the parts of a mapping that are there, by their names: of a scope, or of a rule. Nil for anything else.
	Fields map[string]*Source
	// Items are those of a list, one for each: rules, apps or hosts.
	Items []*Source
}

// under returns a field, nil where there is none.
func (s *Source) under(name string) *Source {
	if s == nil {
		return nil
	}
	return s.Fields[name]
}

// item returns one of a list, nil where there is none.
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

// field returns how a field is written; text and set are those of the value in Go, for a scope or a rule without a source.
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
