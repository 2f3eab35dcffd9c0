// Package strictyaml reads a configuration file without guessing: one document of plain YAML in UTF-8, without anchors, aliases,
// merge keys or tags, each name once. It collects every fault of a file, with its line and column and what to do about it, so
// that all of them can be corrected at once.
//
// It knows no format: the caller defines the fields. Package throttle/limitsyaml reads limits.yaml with it, package
// queue/schedule schedules.yaml.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/headway-go/headway/internal/diag"
)

// Faults collects the faults of a YAML file. The zero Faults is ready to use. It is not safe for concurrent use.
type Faults struct{ diag.Faults }

// PlaceOf returns the place of a node.
func PlaceOf(n *yaml.Node) diag.Place {
	return diag.Place{Line: int32(n.Line), Column: int32(n.Column)}
}

// MaxBytes is the maximum length of a text that is read.
const MaxBytes = 4 << 20

// maxNesting is the maximum depth of YAML nodes. The eight levels of a limits.yaml need twenty.
const maxNesting = 64

// Format contains the advice for files of a format that are too long or empty.
type Format struct {
	TooLong string // such as "divide it"
	Empty   string // such as "write limits: {} if no rules are meant"
}

// Read returns the root of the only document of a text. It returns nil if there is none, and then reports the faults that are the
// reason.
func (f Format) Read(data []byte, faults *Faults) *yaml.Node {
	if len(data) > MaxBytes {
		faults.Add(diag.Start, "", fmt.Sprintf("the file is longer than %d bytes; %s", MaxBytes, f.TooLong))
		return nil
	}
	if !readable(data, faults) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxNesting))))
	if err != nil {
		faults.Add(diag.Start, "", "the file cannot be read: "+err.Error())
		return nil
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF) || err == nil && nothing(&first):
		faults.Add(diag.Start, "", "the file is empty; "+f.Empty)
		return nil
	case err != nil:
		faults.syntax(data, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		faults.Add(PlaceOf(&second), "", "a second document begins here; write one, and no --- or ... after it")
	case !errors.Is(err, io.EOF):
		faults.syntax(data, err)
	}
	return first.Content[0]
}

// nothing reports whether a document contains nothing except comments.
func nothing(document *yaml.Node) bool {
	root := document.Content[0]
	return root.Kind == yaml.ScalarNode && root.Tag == "!!null" && root.Value == "" && root.Anchor == ""
}

// readable returns whether every character is allowed in a file, and reports the first on each line that is not. Line ends that
// YAML knows and editors do not are not allowed, so that the lines of other faults are those that people see.
func readable(data []byte, faults *Faults) bool {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	at, ok := diag.Start, true
	for line := range bytes.Lines(data) {
		at.Column = 1
		for reason := ""; len(line) > 0 && reason == ""; at.Column++ {
			r, size := utf8.DecodeRune(line)
			if reason = charReason(r, size, line); reason != "" {
				faults.Add(at, "", reason)
				ok = false
			}
			line = line[size:]
		}
		at.Line++
	}
	return ok
}

// charReason returns why the character that rest, a part of a line, begins with is not allowed, empty if it is.
func charReason(r rune, size int, rest []byte) string {
	switch {
	case r == '\n' || r == '\t' || r >= ' ' && r < 0x7f || r == '\r' && len(rest) > 1 && rest[1] == '\n':
		return ""
	case r == utf8.RuneError && size == 1:
		return fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", rest[0])
	case r == '\r':
		return "a carriage return stands alone; end lines with a line feed"
	case diag.Invisible(r) || r == '\ufffe' || r == '\uffff':
		return fmt.Sprintf("the character %U may not stand in the file; remove it, or write it as an escape in double quotes", r)
	}
	return ""
}

// syntax reports text that is not YAML.
func (l *Faults) syntax(data []byte, err error) {
	var fault *yaml.LoadError
	if !errors.As(err, &fault) || fault.Mark.Line < 1 {
		l.Add(diag.Start, "", "the file is not YAML: "+err.Error())
		return
	}
	at := diag.Place{Line: int32(fault.Mark.Line), Column: int32(max(fault.Mark.Column, 1))}
	if lines := int32(bytes.Count(data, []byte("\n")) + 1); at.Line > lines { // YAML counts a further line after text that does not end in a line feed
		at = diag.Place{Line: lines, Column: int32(utf8.RuneCount(data[bytes.LastIndexByte(data, '\n')+1:]) + 1)}
	}
	reason := "this is not YAML: " + fault.Message
	if fault.ContextMsg != "" {
		reason += " " + fault.ContextMsg
		if begun := fault.ContextMark; begun.Line > 0 && begun.Line != fault.Mark.Line {
			reason += fmt.Sprintf(" begun on line %d", begun.Line)
		}
	}
	l.Add(at, "", reason+"; "+syntaxHint(reason, data, at))
}

// syntaxHints are what to do about text that is not YAML, by parts of the reason.
var syntaxHints = []struct{ part, hint string }{
	{"max depth", "nothing needs so much nesting, close a bracket"},
	{"incompatible YAML", "remove the line"},
	{"scanning an alias", `put text that begins with * in quotes, such as "*"`},
	{"unknown anchor", "anchors and aliases are not read, write the value out"},
	{"cannot start any token", "put text that begins with this character in quotes"},
	{"mapping values are not allowed", `check the indentation, and put text that holds ": " in quotes`},
	{"", "check the indentation, quotes and brackets up to here"},
}

func syntaxHint(reason string, data []byte, at diag.Place) string {
	if strings.Contains(reason, "cannot start any token") && isTab(data, at) {
		return "indent with spaces, not tabs"
	}
	i := slices.IndexFunc(syntaxHints, func(h struct{ part, hint string }) bool { return strings.Contains(reason, h.part) })
	return syntaxHints[i].hint
}

// isTab reports whether a tab stands at a place with only ASCII before it on its line.
func isTab(data []byte, at diag.Place) bool {
	for ; at.Line > 1; at.Line-- {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return int(at.Column) <= len(data) && data[at.Column-1] == '\t'
}
