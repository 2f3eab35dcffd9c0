package limitsyaml

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// MaxBytes is the maximum length of a limits.yaml that is read, and of a policy in its written form,
// in bytes. A policy must fit where it is published.
const MaxBytes = strictyaml.MaxBytes

const writeLess = `let "*" carry what scopes have in common`

var file = strictyaml.Format{
	TooLong: writeLess,
	Empty:   "write limits: {} if no rules are meant",
}

// Load reads the limits.yaml at path. The error is a *policy.Error that names path, or that of the
// file system.
func Load(path string) (*policy.Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	defer func() { _ = file.Close() }() // nothing was written that could be lost
	data, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	return Parse(path, data)
}

// Parse parses a limits.yaml of at most 4 MiB, and sets every default. name is its name in errors.
// The error is a *policy.Error with every fault of the text, each with its line and column. Parse
// never guesses a value.
//
// The text is plain YAML: one document in UTF-8, without anchors, aliases, merge keys or tags.
func Parse(name string, data []byte) (*policy.Policy, error) {
	d := decoder{&strictyaml.Faults{}}
	root := file.Read(data, d.Faults)
	if root == nil {
		return nil, d.refused(name, nil)
	}
	source, unmatched, limits := d.file(root)
	p, err := policy.NewFrom(source, unmatched, limits)
	if err := d.refused(name, err); err != nil {
		return nil, err
	}
	if n := len(Format(p)); n > MaxBytes {
		d.Add(diag.Start, "", fmt.Sprintf("the policy is %d bytes long when written out; the most is %d: %s", n, MaxBytes, writeLess))
		return nil, d.refused(name, nil)
	}
	return p, nil
}

// refused returns an error with the faults of the text, and those that package policy has found in
// its values; nil if there are none.
func (d decoder) refused(name string, found error) error {
	if its, is := errors.AsType[*policy.Error](found); is {
		listed := its.Faults
		if its.Unlisted > 0 {
			listed = listed[:len(listed)-1]
		}
		for _, f := range listed {
			d.Add(diag.Place{Line: int32(f.Line), Column: int32(f.Column)}, f.Path, f.Reason)
		}
		d.Miss(its.Unlisted)
	}
	if d.None() {
		return nil
	}
	err := &policy.Error{Name: name, Unlisted: d.Unlisted()}
	for _, f := range d.All() {
		err.Faults = append(err.Faults, policy.Fault(f))
	}
	return err
}

// alone is refused for a text of a single value. The faults have no path, since each reason names
// its field.
func (d decoder) alone(name string, found error) error {
	err := d.refused(name, found)
	if its, is := errors.AsType[*policy.Error](err); is {
		for i := range its.Faults {
			its.Faults[i].Path = ""
		}
	}
	return err
}
