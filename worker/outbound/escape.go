package outbound

import (
	"html"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escape is a way to write characters as others.
type escape struct {
	first byte // the byte with which each escape begins
	// read appends to dst the decoded form of the escape at the beginning of s, and returns its length; 0 if s begins with none.
	read func(dst []byte, s string) ([]byte, int)
}

// escapes are those in which answers return what they were sent.
var escapes = []escape{{'\\', unescapeJSON}, {'&', unescapeHTML}, {'%', unescapeURL}}

// next appends to dst the first character of s, decoded if it is escaped, and returns its length.
func (e escape) next(dst []byte, s string) (_ []byte, used int, escaped bool) {
	if s[0] == e.first {
		if dst, used = e.read(dst, s); used > 0 {
			return dst, used, true
		}
	}
	return append(dst, s[0]), 1, false
}

// decode returns s with its escapes decoded.
func (e escape) decode(s string) string {
	text := make([]byte, 0, len(s))
	for used := 0; s != ""; s = s[used:] {
		text, used, _ = e.next(text, s)
	}
	return string(text)
}

func unescapeJSON(dst []byte, s string) ([]byte, int) {
	if len(s) < 2 {
		return dst, 0
	}
	if i := strings.IndexByte(`"\/bfnrt`, s[1]); i >= 0 {
		return append(dst, "\"\\/\b\f\n\r\t"[i]), 2
	}
	r, ok := utf16Unit(s)
	if !ok {
		return dst, 0
	}
	if low, ok := utf16Unit(s[6:]); ok && utf16.IsSurrogate(r) {
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return utf8.AppendRune(dst, pair), 12
		}
	}
	return utf8.AppendRune(dst, r), 6 // a lone surrogate becomes U+FFFD, as in encoding/json
}

// utf16Unit parses \uXXXX.
func utf16Unit(s string) (rune, bool) {
	if len(s) < 6 || s[:2] != `\u` {
		return 0, false
	}
	unit, err := strconv.ParseUint(s[2:6], 16, 16)
	return rune(unit), err == nil
}

func unescapeHTML(dst []byte, s string) ([]byte, int) {
	const longest = len("&#x10ffff;")
	end := strings.IndexByte(s[:min(len(s), longest)], ';')
	if end < 0 {
		return dst, 0
	}
	entity := s[:end+1]
	if text := html.UnescapeString(entity); text != entity {
		return append(dst, text...), len(entity)
	}
	return dst, 0
}

func unescapeURL(dst []byte, s string) ([]byte, int) {
	text, err := url.PathUnescape(s[:min(len(s), 3)])
	if err != nil {
		return dst, 0
	}
	return append(dst, text...), 3
}
