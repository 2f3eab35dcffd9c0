package cli

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What comes from Redis, a file or another user's command line can hold sequences that move a
// terminal's cursor, set its title or reorder what is read. Everything that the programs print goes
// through here: a value through Quote, a line through Escape, JSON through EscapeJSON.

// Escape returns text with everything that is not printable as Go writes it in a string: \x1b, \n,
// \u009b, \u202e. That includes control characters, those that change the direction of text, and
// bytes that are no UTF-8. It is for what stands on one line.
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
