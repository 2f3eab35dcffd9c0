package diag

import (
	"fmt"
	"strings"
)

// Clip keeps what is quoted of a file readable.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// quoteBytes is longer than any name, so that only texts that are none are
// cut: an error is not the place for a megabyte of somebody's payload.
const quoteBytes = 1031

// Quote returns s as a Go string on one line, cut where it is too long to print.
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

// PathName quotes the names that a path could not be read with.
func PathName(name string) string {
	plain := name != "" && strings.IndexFunc(name, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
	if plain {
		return name
	}
	return Quote(name)
}
