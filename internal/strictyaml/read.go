package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/headway-go/headway/internal/diag"
)

// MaxBytes is the maximum length of a text that is read.
const MaxBytes = 4 << 20

// maxNesting is the maximum depth of YAML nodes. The eight levels of a limits.yaml need twenty.
const maxNesting = 64

// Format contains the advice for files of a format that are too long or empty.
type Format struct {
	TooLong string // such as "divide it"
	Empty   string // such as "write limits: {} if no rules are meant"
}

// Read returns the root of the only document of a text. It returns nil if there is none, and then
// reports the faults that are the reason.
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

// readable returns whether every character is allowed in a file, and reports the first on each line
// that is not. Line ends that YAML knows and editors do not are not allowed, so that the lines of
// other faults are those that people see.
func readable(data []byte, faults *Faults) bool {
	ok, at, quiet := true, diag.Start, false
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if reason := charReason(r, size, data[i:], i); reason != "" && !quiet {
			faults.Add(at, "", reason)
			ok, quiet = false, true
		}
		switch {
		case r == '\n':
			at, quiet = diag.Place{Line: at.Line + 1, Column: 1}, false
		case r != '\ufeff' || i > 0:
			at.Column++
		}
		i += size
	}
	return ok
}

// charReason returns why the character that rest begins with is not allowed at offset, empty if it
// is.
func charReason(r rune, size int, rest []byte, offset int) string {
	switch {
	case r == '\n' || r == '\t' || r >= ' ' && r < 0x7f:
		return ""
	case r == utf8.RuneError && size == 1:
		return fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", rest[0])
	case r == '\r':
		if len(rest) > 1 && rest[1] == '\n' {
			return ""
		}
		return "a carriage return stands alone; end lines with a line feed"
	case r == '\ufeff' && offset == 0:
		return ""
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
	if end := endOf(data); at.Line > end.Line {
		at = end // YAML counts a further line after text that does not end in a line feed
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

// syntaxHint returns what to do about text that is not YAML.
func syntaxHint(reason string, data []byte, at diag.Place) string {
	switch {
	case strings.Contains(reason, "max depth"):
		return "nothing needs so much nesting, close a bracket"
	case strings.Contains(reason, "incompatible YAML"):
		return "remove the line"
	case strings.Contains(reason, "scanning an alias"):
		return `put text that begins with * in quotes, such as "*"`
	case strings.Contains(reason, "unknown anchor"):
		return `anchors and aliases are not read, write the value out`
	case strings.Contains(reason, "cannot start any token"):
		if lineAt(data, int(at.Line), int(at.Column)) == '\t' {
			return "indent with spaces, not tabs"
		}
		return "put text that begins with this character in quotes"
	case strings.Contains(reason, "mapping values are not allowed"):
		return `check the indentation, and put text that holds ": " in quotes`
	}
	return "check the indentation, quotes and brackets up to here"
}

// endOf returns the place just after a text.
func endOf(data []byte) diag.Place {
	last := data[bytes.LastIndexByte(data, '\n')+1:]
	return diag.Place{Line: int32(bytes.Count(data, []byte("\n")) + 1), Column: int32(utf8.RuneCount(last) + 1)}
}

// lineAt returns the byte at a line and column, if only ASCII is before it on the line; 0 beyond the
// end.
func lineAt(data []byte, line, column int) byte {
	for ; line > 1; line-- {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	if column > len(data) {
		return 0
	}
	return data[column-1]
}
