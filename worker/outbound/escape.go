package outbound

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escape is a way to write characters as others.
type escape struct {
	first byte // the byte with which each escape begins
	// read appends to dst the decoded form of the escape at the beginning of s, and returns its
	// length; 0 if s begins with none.
	read func(dst []byte, s string) ([]byte, int)
}

// escapes are those in which answers return what they were sent.
var escapes = []escape{{'\\', unescapeJSON}, {'&', unescapeHTML}, {'%', unescapeURL}}

// decode appends s with its escapes decoded.
func (e escape) decode(dst []byte, s string) []byte {
	for s != "" {
		i := strings.IndexByte(s, e.first)
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		used := 0
		if dst, used = e.read(dst, s[i:]); used == 0 {
			dst, used = append(dst, e.first), 1
		}
		s = s[i+used:]
	}
	return dst
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
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	n, ok := number(s[2:6], 16)
	return rune(n), ok
}

// htmlNames are the entities that programs write; all others are written as numbers.
var htmlNames = map[string]string{"amp": "&", "lt": "<", "gt": ">", "quot": `"`, "apos": "'", "nbsp": "\u00a0"}

func unescapeHTML(dst []byte, s string) ([]byte, int) {
	const longest = len("&#x10ffff;")
	end := strings.IndexByte(s[:min(len(s), longest)], ';')
	if end < 2 {
		return dst, 0
	}
	name, numeric := strings.CutPrefix(s[1:end], "#")
	if !numeric {
		text, ok := htmlNames[name]
		if !ok {
			return dst, 0
		}
		return append(dst, text...), end + 1
	}
	base := 10
	if name != "" && name[0]|0x20 == 'x' {
		name, base = name[1:], 16
	}
	n, ok := number(name, base)
	if !ok {
		return dst, 0
	}
	return utf8.AppendRune(dst, rune(n)), end + 1
}

func unescapeURL(dst []byte, s string) ([]byte, int) {
	if len(s) < 3 {
		return dst, 0
	}
	n, ok := number(s[1:3], 16)
	if !ok {
		return dst, 0
	}
	return append(dst, byte(n)), 3
}

// number parses up to seven digits. It allocates nothing, unlike the errors of strconv: a body may
// contain a million bytes of invalid escapes.
func number(digits string, base int) (n int, ok bool) {
	for i := range len(digits) {
		c, d := digits[i]|0x20, 0
		switch {
		case '0' <= digits[i] && digits[i] <= '9':
			d = int(digits[i] - '0')
		case 'a' <= c && c <= 'f':
			d = int(c-'a') + 10
		default:
			return 0, false
		}
		if d >= base {
			return 0, false
		}
		n = n*base + d
	}
	return n, digits != ""
}
