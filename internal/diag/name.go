package diag

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the maximum length of a name, in bytes.
const MaxNameBytes = 128

// NameReason returns what is wrong with a name, empty for nothing. Names are those of scopes, rules, schedules and all else that
// appears by name in keys and paths.
func NameReason(name string) string {
	if name == "" {
		return fmt.Sprintf("is empty; write 1 to %d bytes", MaxNameBytes)
	}
	if len(name) > MaxNameBytes {
		return fmt.Sprintf("is %d bytes long; the most is %d", len(name), MaxNameBytes)
	}
	for i, r := range name {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(name[i:], string(utf8.RuneError)):
			return fmt.Sprintf("is not UTF-8 (byte 0x%02x at offset %d); encode it, in hex for instance", name[i], i)
		case r == '/':
			return "holds a '/', which divides names; write another character"
		case Invisible(r):
			return fmt.Sprintf("holds the control character %U; remove it", r)
		}
	}
	return ""
}

// Invisible reports whether a name must not contain a character: a control character, a line or paragraph separator, or a byte
// order mark. They end lines, move cursors or vanish where people read names.
func Invisible(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}
