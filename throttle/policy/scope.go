package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headway-go/headway/internal/diag"
)

// The bounds of a scope. maxScopeBytes follows from the longest name.
const (
	maxLevels     = 8
	maxScopeBytes = maxLevels*diag.MaxNameBytes + maxLevels - 1
)

// anyName is the name under which limits.yaml has the rules of every name of a level. A task cannot use it, so it never collides
// with a real name.
const anyName = "*"

// Scope is the path that a task spends from, outermost name first: payments/acme/refunds is provider, tenant, endpoint.
//
// It is a value: two Scopes are == exactly when they are the same path, so it can be a map key. It may contain a customer's name,
// which then appears in keys and logs. The zero Scope has no names and matches no rule.
type Scope struct{ text string }

// ParseScope parses a path of 1 to 8 names divided by '/'. A name is 1 to 128 bytes of UTF-8 without '/', control characters,
// U+2028, U+2029 and U+FEFF, and is not "*". All other characters are allowed and stand for themselves: names are not trimmed,
// folded or normalised.
//
// The error is a *ScopeError with the first fault. ParseScope allocates only that: the Scope shares the memory of s.
func ParseScope(s string) (Scope, error) {
	if s == "" {
		return Scope{}, &ScopeError{Scope: s, Reason: "is empty; write names divided by '/', such as payments/acme"}
	}
	for start, level := 0, 1; ; level++ {
		name, _, more := strings.Cut(s[start:], "/")
		if reason := taskNameReason(name, level); reason != "" {
			return Scope{}, &ScopeError{Scope: s, Reason: reason}
		}
		if !more {
			return Scope{text: s}, nil
		}
		start += len(name) + 1
	}
}

// taskNameReason returns what is wrong with one name of a task's scope, empty for nothing.
func taskNameReason(name string, level int) string {
	if level > maxLevels {
		return fmt.Sprintf("has more than %d names; join or drop some", maxLevels)
	}
	if name == anyName {
		return fmt.Sprintf(`name %d is "*", which stands for every name in limits.yaml; write the name itself`, level)
	}
	if reason := diag.NameReason(name); reason != "" {
		return fmt.Sprintf("name %d %s", level, reason)
	}
	return ""
}

// String returns the path exactly as it was parsed.
func (s Scope) String() string { return s.text }

// Names returns the names of the path, outermost first. It allocates.
func (s Scope) Names() []string {
	if s.text == "" {
		return nil
	}
	return strings.Split(s.text, "/")
}

// Provider returns the outermost name. All keys of one provider are in the same hash slot.
func (s Scope) Provider() string {
	provider, _, _ := strings.Cut(s.text, "/")
	return provider
}

// Len returns the number of names, 0 to 8.
func (s Scope) Len() int {
	if s.text == "" {
		return 0
	}
	return strings.Count(s.text, "/") + 1
}

// Prefix returns the path of the first n names: s itself if n >= s.Len(), the zero Scope if n <= 0. It does not allocate.
func (s Scope) Prefix(n int) Scope {
	prefix := Scope{}
	for ; n > 0 && prefix != s; n-- {
		prefix = s.below(prefix)
	}
	return prefix
}

// below returns the path with one name more than level, a prefix of s; the zero Scope if level is s.
func (s Scope) below(level Scope) Scope {
	start := len(level.text)
	if start > 0 {
		start++
	}
	if start >= len(s.text) {
		return Scope{}
	}
	next, _, _ := cutLevel(s.text[start:])
	return Scope{s.text[:start+len(next)]}
}

// last returns the innermost name, and /gold of a place such as payments//gold.
func (s Scope) last() string {
	i := strings.LastIndexByte(s.text, '/')
	if i > 0 && s.text[i-1] == '/' {
		i--
	}
	return s.text[i+1:]
}

// JoinScope returns the path of names that come from outside, such as a tenant's id, outermost first: JoinScope("payments",
// "acme") is payments/acme. Each name is one level, whatever it holds, and two names never become the same: '/', '%', control
// characters, bytes that are no UTF-8 and a name "*" are written as %2F and the like, and a name longer than 128 bytes ends in a
// hash of it.
//
// The result is empty if there is no name or one is empty, since every caller without a tenant would spend from the same limits
// otherwise. An empty scope meets no rule.
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
