package diag

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is how long a name can be.
const MaxNameBytes = 128

// NameReason says what is wrong with a name, if anything: of a scope, a rule, a schedule or
// whatever else has its name in keys and paths.
func NameReason(name string) string {
	if name == "" {
		return fmt.Sprintf("is empty; write 1 to %d bytes", MaxNameBytes)
	}
	if len(name) > MaxNameBytes {
		return fmt.Sprintf("is %d bytes long; the most is %d", len(name), MaxNameBytes)
	}
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '/' || c >= 0x7f {
			return runeReason(name, i)
		}
	}
	return ""
}

// runeReason is NameReason for a name that is not plain ASCII from byte i on.
func runeReason(name string, i int) string {
	for i < len(name) {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return fmt.Sprintf("is not UTF-8 (byte 0x%02x at offset %d); encode it, in hex for instance", name[i], i)
		case r == '/':
			return "holds a '/', which divides names; write another character"
		case Invisible(r):
			return fmt.Sprintf("holds the control character %U; remove it", r)
		}
		i += size
	}
	return ""
}

// Invisible tells the characters that a name must not hold: they end lines,
// move cursors or vanish in the places where people read names.
func Invisible(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}
