package throttle

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headway-go/headway/throttle/strictyaml"
)

// The bounds of a scope. maxScopeBytes follows from the other two.
const (
	maxLevels     = 8
	maxNameBytes  = 128
	maxScopeBytes = maxLevels*maxNameBytes + maxLevels - 1
)

// anyName is the name under which limits.yaml keeps the rules of every name of
// a level. A task cannot use it, so it can never collide with a real one.
const anyName = "*"

// Scope is the path that a task spends from, outermost name first:
// payments/acme/refunds is provider, tenant, endpoint.
//
// It is a value: two Scopes are == exactly when they are the same path, so it
// can be a map key. It may name a customer, who then shows in keys and logs.
// The zero Scope has no names and meets no rule.
type Scope struct{ text string }

// ParseScope reads a path of 1 to 8 names divided by '/'. A name is 1 to 128
// bytes of UTF-8 without '/' or control characters, U+2028, U+2029 and U+FEFF
// among them, and is not "*". Anything else is allowed and stands for itself:
// names are not trimmed, folded or normalised.
//
// The error is a *ScopeError with the first fault. ParseScope allocates only
// that: the Scope shares the memory of s.
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

// taskNameReason says what is wrong with one name of a task's scope, if anything.
func taskNameReason(name string, level int) string {
	if level > maxLevels {
		return fmt.Sprintf("has more than %d names; join or drop some", maxLevels)
	}
	if name == anyName {
		return fmt.Sprintf(`name %d is "*", which stands for every name in limits.yaml; write the name itself`, level)
	}
	if reason := nameReason(name); reason != "" {
		return fmt.Sprintf("name %d %s", level, reason)
	}
	return ""
}

// nameReason says what is wrong with a name, if anything. It holds for names of
// scopes and of rules alike.
func nameReason(name string) string {
	if name == "" {
		return fmt.Sprintf("is empty; write 1 to %d bytes", maxNameBytes)
	}
	if len(name) > maxNameBytes {
		return fmt.Sprintf("is %d bytes long; the most is %d", len(name), maxNameBytes)
	}
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '/' || c >= 0x7f {
			return runeReason(name, i)
		}
	}
	return ""
}

// runeReason is nameReason for a name that is not plain ASCII from byte i on.
func runeReason(name string, i int) string {
	for i < len(name) {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return fmt.Sprintf("is not UTF-8 (byte 0x%02x at offset %d); encode it, in hex for instance", name[i], i)
		case r == '/':
			return "holds a '/', which divides names; write another character"
		case strictyaml.Invisible(r):
			return fmt.Sprintf("holds the control character %U; remove it", r)
		}
		i += size
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

// Provider returns the outermost name. All keys of one provider share a slot.
func (s Scope) Provider() string {
	provider, _, _ := strings.Cut(s.text, "/")
	return provider
}

// Len returns how many names the path has, 0 to 8.
func (s Scope) Len() int {
	if s.text == "" {
		return 0
	}
	return strings.Count(s.text, "/") + 1
}

// Prefix returns the path of the first n names: s itself when n >= s.Len(), the
// zero Scope when n <= 0. It does not allocate.
func (s Scope) Prefix(n int) Scope {
	if n <= 0 {
		return Scope{}
	}
	end := 0
	for ; n > 0; n-- {
		slash := strings.IndexByte(s.text[end:], '/')
		if slash < 0 {
			return s
		}
		end += slash + 1
	}
	return Scope{text: s.text[:end-1]}
}
