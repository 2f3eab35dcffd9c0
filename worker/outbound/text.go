package outbound

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes foreign text fit for one line of a log: valid UTF-8, white space as single spaces, each
// run of other unprintable characters as one U+FFFD, at most limit bytes.
func clean(s string, limit int) string {
	var b strings.Builder
	last := ' ' // so that leading space is removed
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsPrint(r):
			r = utf8.RuneError
		}
		if r == last && (r == ' ' || r == utf8.RuneError) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
		last = r
	}
	return strings.TrimRight(b.String(), " ")
}
