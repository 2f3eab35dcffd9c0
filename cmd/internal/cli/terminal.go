package cli

import (
	"io"

	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal, where a line may be rewritten.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}
