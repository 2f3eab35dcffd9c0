package diag

import (
	"fmt"
	"strings"
)

// Clip returns a short form of s for messages: at most 64 bytes and an ellipsis.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// quoteBytes is the length that Quote prints. It is longer than any valid name, so that only other
// texts are cut: a payload of a megabyte does not belong in an error.
const quoteBytes = 1031

// Quote returns s as a Go string on one line, cut after quoteBytes.
func Quote(s string) string {
	if len(s) <= quoteBytes {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:quoteBytes], len(s))
}

// PathTo returns the path of a name under another path.
func PathTo(path, name string) string {
	if path == "" {
		return PathName(name)
	}
	return path + "." + PathName(name)
}

// PathName returns a name as a path contains it, quoted if the path would otherwise be ambiguous.
func PathName(name string) string {
	plain := name != "" && strings.IndexFunc(name, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
	if plain {
		return name
	}
	return Quote(name)
}
