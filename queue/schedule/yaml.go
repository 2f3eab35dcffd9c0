package schedule

import (
	"fmt"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
)

var format = strictyaml.Format{
	TooLong: "divide it, one file to a group of workers",
	Empty:   "write schedules: {} if none are meant",
}

// reader decodes the nodes of a schedules.yaml into schedules, and collects every fault.
type reader struct{ strictyaml.Faults }

func (r *reader) fault(at diag.Place, path, format string, args ...any) {
	r.Add(at, path, fmt.Sprintf(format, args...))
}

func (r *reader) err(name string) error {
	if r.None() {
		return nil
	}
	return &FileError{Name: name, Faults: r.All()}
}

// field is a name of a mapping with its value.
type field struct {
	strictyaml.Field
	path string
}

// bad reports a fault of a value.
func (r *reader) bad(f field, format string, args ...any) { r.Bad(f.Field, f.path, format, args...) }

// is reports whether a value is of a kind, and adds a fault if it is not.
func (r *reader) is(f field, kind yaml.Kind, want string) bool {
	return r.Is(f.Field, kind, f.path, want)
}

// text reads a text. A value that YAML reads as a number or the like must be quoted if text is meant.
func (r *reader) text(f field, want string) (string, bool) {
	if !r.is(f, yaml.ScalarNode, want) {
		return "", false
	}
	if f.Value.Tag != "!!str" {
		r.bad(f, "is %s; write %s, or %q in quotes if that text is meant", strictyaml.Describe(f.Value), want, diag.Clip(f.Value.Value))
		return "", false
	}
	return f.Value.Value, true
}

// fields returns the fields of a mapping that have a name of their own.
func (r *reader) fields(n *yaml.Node, path string) []field {
	its := r.Fields(n, path)
	fields := make([]field, len(its))
	for i, f := range its {
		fields[i] = field{Field: f, path: diag.PathTo(path, f.Name)}
	}
	return fields
}

// unknown reports a field that its owner does not have.
func (r *reader) unknown(f field, owner string, known []string) {
	r.fault(strictyaml.PlaceOf(f.Key), f.path, "%s is not a field of %s; %s", f.Label, owner, diag.Meant(f.Name, known))
}
