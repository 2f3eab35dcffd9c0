package schedule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/headway-go/headway/throttle"
)

const (
	maxFileBytes = 4 << 20
	maxNesting   = 64   // a payload may be deep, and nothing else is
	maxFaults    = 1000 // more than anybody reads of one file
)

// place is a position in a text, both from 1.
type place struct{ line, column int }

var fileStart = place{1, 1}

func placeOf(n *yaml.Node) place { return place{n.Line, n.Column} }

// reader turns the nodes of a schedules.yaml into schedules, and gathers every
// fault on the way.
type reader struct {
	faults []throttle.Fault
	more   int // after maxFaults
}

func (r *reader) fault(at place, path, format string, args ...any) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, throttle.Fault{
		Line: at.line, Column: at.column, Path: path, Reason: fmt.Sprintf(format, args...),
	})
}

func (r *reader) err(name string) error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b throttle.Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	if r.more > 0 {
		last := r.faults[len(r.faults)-1]
		last.Path, last.Reason = "", fmt.Sprintf("%d more faults are not listed; correct these first", r.more)
		r.faults = append(r.faults, last)
	}
	return &FileError{Name: name, Faults: r.faults}
}

// document returns the root of the one document of a text, or nil.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > maxFileBytes {
		r.fault(fileStart, "", "the file is longer than %d bytes; divide it, one file to a group of workers", maxFileBytes)
		return nil
	}
	if at, reason := unreadable(data); reason != "" {
		r.fault(at, "", "%s", reason)
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxNesting))))
	if err != nil {
		r.fault(fileStart, "", "the file cannot be read: %v", err)
		return nil
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF) || err == nil && nothing(first.Content[0]):
		r.fault(fileStart, "", "the file is empty; write schedules: {} if none are meant")
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		r.fault(placeOf(&second), "", "a second document begins here; write one, and no --- or ... after it")
	case !errors.Is(err, io.EOF):
		r.syntax(data, err)
	}
	return first.Content[0]
}

// nothing reports whether nothing is written where a node stands.
func nothing(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Value == "" && n.Style == 0 && n.Anchor == ""
}

// unreadable returns the first character that may not stand in the file. Among
// those are line ends that YAML knows and editors do not.
func unreadable(data []byte) (at place, reason string) {
	at = fileStart
	for i := 0; i < len(data); {
		c, size := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			return at, fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", data[i])
		case c == '\n':
			at = place{at.line + 1, 0}
		case c == '\t', c == '\r' && bytes.HasPrefix(data[i+1:], []byte("\n")), c == '\ufeff' && i == 0:
		case unicode.IsControl(c) || slices.Contains([]rune{'\u2028', '\u2029', '\ufeff', '\ufffe', '\uffff'}, c):
			return at, fmt.Sprintf("the character %U may not stand in the file; remove it, or write it as an escape in double quotes", c)
		}
		if c != '\ufeff' {
			at.column++
		}
		i += size
	}
	return place{}, ""
}

// syntax reports text that is not YAML.
func (r *reader) syntax(data []byte, err error) {
	var bad *yaml.LoadError
	if !errors.As(err, &bad) || bad.Mark.Line < 1 {
		r.fault(fileStart, "", "the file is not YAML: %v", err)
		return
	}
	lines := bytes.Count(data, []byte("\n")) + 1 // YAML can count one more
	at := place{min(bad.Mark.Line, lines), max(bad.Mark.Column, 1)}
	r.fault(at, "", "this is not YAML: %s; check the indentation, quotes and brackets up to here, "+
		"and put text that begins with * or @ in quotes", strings.TrimSpace(bad.Message+" "+bad.ContextMsg))
}

// field is a name of a mapping with its value.
type field struct {
	name, path string
	key, value *yaml.Node
}

// place is where a fault of the value is shown. An empty value stands nowhere.
func (f field) place() place {
	if nothing(f.value) {
		return placeOf(f.key)
	}
	return placeOf(f.value)
}

func (r *reader) bad(f field, format string, args ...any) {
	label := "the file"
	if f.path != "" {
		label = pathName(f.name)
	}
	r.fault(f.place(), f.path, "%s", label+" "+fmt.Sprintf(format, args...))
}

// is reports whether a value is of a kind, and the fault if it is not.
func (r *reader) is(f field, kind yaml.Kind, want string) bool {
	n := f.value
	switch {
	case n.Kind == yaml.AliasNode:
		r.bad(f, "is an alias, and aliases are not read; write its value out")
	case n.Anchor != "":
		r.bad(f, "has an anchor, and anchors are not read; remove &%s", clip(n.Anchor))
	case tagged(n):
		r.bad(f, "has a tag, and tags are not read; remove %s", clip(n.Tag))
	case n.Kind != kind || n.Tag == "!!null" && want != anyScalar:
		r.bad(f, "is %s; write %s", describe(n), want)
	default:
		return true
	}
	return false
}

// anyScalar is what is wanted of a scalar that may be null.
const anyScalar = "a value"

// tagged reports whether somebody wrote a tag, such as !!int or !.
func tagged(n *yaml.Node) bool { return n.Style&yaml.TaggedStyle != 0 || n.Tag == "!" }

// text reads a piece of text. Where YAML sees a number or the like, a person
// has to say that text is meant.
func (r *reader) text(f field, want string) (string, bool) {
	if !r.is(f, yaml.ScalarNode, want) {
		return "", false
	}
	if f.value.Tag != "!!str" {
		r.bad(f, "is %s; write %s, or %q in quotes if that text is meant", describe(f.value), want, clip(f.value.Value))
		return "", false
	}
	return f.value.Value, true
}

// fields returns the fields of a mapping that have a name of their own. A plain
// scalar of any type is its own text: 404 is the name "404".
func (r *reader) fields(n *yaml.Node, path string) []field {
	fields := make([]field, 0, len(n.Content)/2)
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		f := field{name: n.Content[i].Value, path: pathTo(path, n.Content[i].Value), key: n.Content[i], value: n.Content[i+1]}
		if reason := keyReason(f.key); reason != "" {
			r.fault(placeOf(f.key), path, "%s", reason)
			continue
		}
		if line, twice := lines[f.name]; twice {
			r.fault(placeOf(f.key), f.path, "%s is there already, on line %d; keep one of the two", pathName(f.name), line)
			continue
		}
		lines[f.name] = f.key.Line
		fields = append(fields, f)
	}
	return fields
}

// keyReason says what is wrong with the key of a mapping, if anything.
func keyReason(key *yaml.Node) string {
	switch {
	case key.Kind == yaml.AliasNode:
		return "a name is an alias, and aliases are not read; write the name out"
	case key.Anchor != "":
		return fmt.Sprintf("a name has an anchor, and anchors are not read; remove &%s", clip(key.Anchor))
	case tagged(key):
		return fmt.Sprintf("a name has a tag, and tags are not read; remove %s", clip(key.Tag))
	case key.Kind != yaml.ScalarNode:
		return describe(key) + " stands where a name has to; write a name"
	case key.Tag == "!!merge":
		return "<< is a merge key, and merge keys are not read; write the fields out"
	}
	return ""
}

// unknown reports a field that its owner does not have.
func (r *reader) unknown(f field, owner string, known []string) {
	last := len(known) - 1
	r.fault(placeOf(f.key), f.path, "%s is not a field of %s; write %s or %s",
		pathName(f.name), owner, strings.Join(known[:last], ", "), known[last])
}

// describe names a node as a person would who reads the file.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null" && n.Value == "":
		return "empty"
	case n.Tag == "!!int" || n.Tag == "!!float":
		return "the number " + clip(n.Value)
	case n.Tag == "!!timestamp":
		return "the date " + clip(n.Value)
	case n.Tag == "!!str":
		return "the text " + strconv.Quote(clip(n.Value))
	}
	return clip(n.Value)
}

func pathTo(path, name string) string {
	if path == "" {
		return pathName(name)
	}
	return path + "." + pathName(name)
}

// pathName quotes the names that a path could not be read with.
func pathName(name string) string {
	odd := strings.IndexFunc(name, func(c rune) bool {
		return c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
	if name != "" && odd < 0 {
		return clip(name)
	}
	return strconv.Quote(clip(name))
}

// clip keeps what is quoted of a file readable.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
