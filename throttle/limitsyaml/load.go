// Package limitsyaml reads and writes limits.yaml, the form in which people write policies and in which Redis stores them.
//
//	rules, err := limitsyaml.Load("limits.yaml")
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//
// Package policy checks the limits; this package adds each fault's place in the file. For programs that change limits, it also
// reads and writes single rules, and the values of other fields, in their form in the file.
package limitsyaml

import (
	"fmt"
	"io"
	"os"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// MaxBytes is the maximum length of a limits.yaml that is read, and of a policy in its written form, in bytes. A policy must fit
// where it is published.
const MaxBytes = strictyaml.MaxBytes

const writeLess = `let "*" carry what scopes have in common`

var file = strictyaml.Format{
	TooLong: writeLess,
	Empty:   "write limits: {} if no rules are meant",
}

// Load reads the limits.yaml at path. The error is a *policy.Error that names path, or that of the file system.
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

// Parse parses a limits.yaml of at most 4 MiB, and sets every default. name is its name in errors. The error is a *policy.Error
// with every fault of the text, each with its line and column. Parse never guesses a value.
//
// The text is plain YAML: one document in UTF-8, without anchors, aliases, merge keys or tags.
func Parse(name string, data []byte) (*policy.Policy, error) {
	d := decoder{&strictyaml.Faults{}}
	source, unmatched, limits := d.file(file.Read(data, d.Faults))
	source.Name, source.Faults = name, d.All()
	p, err := policy.NewFrom(source, unmatched, limits)
	if err != nil {
		return nil, err
	}
	if n := len(Format(p)); n > MaxBytes {
		d.Add(diag.Start, "", fmt.Sprintf("the policy is %d bytes long when written out; the most is %d: %s", n, MaxBytes, writeLess))
		return nil, &policy.Error{Name: name, Faults: d.All()}
	}
	return p, nil
}
