package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Output prints results: objects of JSON, one a line, or lines for people. All that it prints is escaped.
// Execute reports a result that could not be written, so that no method returns an error.
type Output struct {
	W    io.Writer
	JSON bool
}

// Print prints object under -json, and otherwise the lines of text.
func (o Output) Print(object any, text string) {
	if o.JSON {
		_, _ = o.W.Write(JSONLine(object))
		return
	}
	o.Text(text)
}

// Text prints the lines of text, whatever the format.
func (o Output) Text(text string) { _, _ = io.WriteString(o.W, EscapeLines(text)+"\n") }

// Table prints rows in columns; head is the first row.
func (o Output) Table(head []string, rows [][]string) {
	w := tabwriter.NewWriter(o.W, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		for i := range row {
			row[i] = Escape(row[i])
		}
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// JSONLine returns v as one line of JSON, escaped. It panics for a value that JSON cannot hold.
func JSONLine(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // reports are made of strings, numbers, lists and times
	}
	return EscapeJSON(b.Bytes())
}

// Count returns "1 task" or "2 tasks": n with the noun in its form.
func Count(n int, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprint(n, " ", plural)
}

// results is the stdout of a program. It remembers the first error of writing.
type results struct {
	io.Writer
	err error
}

func (r *results) Write(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.Writer.Write(p)
	r.err = err
	return n, err
}

// What comes from Redis, a file or another user's command line can hold sequences that move a
// terminal's cursor, set its title or reorder what is read. Everything that the programs print goes
// through here: a value through Quote, a line through Escape, JSON through EscapeJSON.

// Escape returns text with everything that is not printable as Go writes it in a string: \x1b, \n, \u009b, \u202e. That includes
// control characters, those that change the direction of text, and bytes that are no UTF-8. It is for what stands on one line.
func Escape(text string) string {
	if printable(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(r)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// EscapeLines is Escape for text of several lines.
func EscapeLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Escape(line)
	}
	return strings.Join(lines, "\n")
}

// Quote returns a value as it may stand within a line: as it is, or in quotes where it is empty or
// has anything to escape. Of long values it returns the beginning.
func Quote(text string) string {
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if text == "" || !printable(text) {
		return strconv.Quote(text)
	}
	return text
}

// QuoteList returns values as Quote does, with commas between.
func QuoteList(values []string) string {
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = Quote(value)
	}
	return strings.Join(list, ", ")
}

// EscapeJSON returns objects of encoding/json, one a line, with what that leaves of what is not
// printable, all above ASCII and DEL, written as \u202e. What they say stays the same.
func EscapeJSON(objects []byte) []byte {
	if utf8.Valid(objects) && !bytes.ContainsFunc(objects, isEscapedInJSON) {
		return objects
	}
	var b bytes.Buffer
	for _, r := range string(objects) {
		switch {
		case !isEscapedInJSON(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

func isEscapedInJSON(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}
