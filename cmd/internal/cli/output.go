package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
