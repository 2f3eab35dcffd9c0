package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headway-go/headway/internal/diag"
)

// JoinScope returns the path of names that come from outside, such as a tenant's id, outermost first:
// JoinScope("payments", "acme") is payments/acme. Each name is one level, whatever it holds, and two names
// never become the same: '/', '%', control characters, bytes that are no UTF-8 and a name "*" are written
// as %2F and the like, and a name longer than 128 bytes ends in a hash of it.
//
// The result is empty if there is no name or one is empty, since every caller without a tenant would spend
// from the same limits otherwise. An empty scope meets no rule.
func JoinScope(names ...string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		if name == "" {
			return ""
		}
		escaped[i] = escapeName(name)
	}
	return strings.Join(escaped, "/")
}

func escapeName(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if r == '/' || r == '%' || name == anyName || r == utf8.RuneError && size == 1 || diag.Invisible(r) {
			for _, c := range []byte(name[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(name[i : i+size])
		}
		i += size
	}
	text := b.String()
	if len(text) <= diag.MaxNameBytes {
		return text
	}
	sum := sha256.Sum256([]byte(name))
	end := "%." + hex.EncodeToString(sum[:16]) // "%." is in no name that was escaped
	return strings.ToValidUTF8(text[:diag.MaxNameBytes-len(end)], "") + end
}
