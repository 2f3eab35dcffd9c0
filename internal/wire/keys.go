package wire

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
)

// Prefix returns what the keys of a provider begin with, such as "hw:{payments}:". All share its hash tag, and so a slot of a
// cluster. base is throttle.Config.Prefix.
func Prefix(base, provider string) string { return base + ":{" + Escape(provider) + "}:" }

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)

// CheckPrefix returns an error for a Config.Prefix with a byte that no key may begin with.
func CheckPrefix(prefix string) error {
	if prefixForm.MatchString(prefix) {
		return nil
	}
	return fmt.Errorf("Config.Prefix %q holds another character; use letters, digits, '-', '_' and '.'", prefix)
}

// Path returns the part of a scope after the provider's name, as keys and scripts have it: "/acme/refunds". It is empty for the
// provider itself.
func Path(scope string) string {
	_, rest, nested := strings.Cut(scope, "/")
	if !nested {
		return ""
	}
	path := ""
	for name := range strings.SplitSeq(rest, "/") {
		path += "/" + Escape(name)
	}
	return path
}

// ScopeOf returns the scope of a provider with a path.
func ScopeOf(provider, path string) string { return provider + Unescape(path) }

// Provider returns the first name of a scope.
func Provider(scope string) string {
	provider, _, _ := strings.Cut(scope, "/")
	return provider
}

// ScopeKey returns what the keys of a scope begin with that are no rule's: those of its usage.
func ScopeKey(base, scope string) string {
	return strings.TrimSuffix(Prefix(base, Provider(scope)), ":") + Path(scope)
}

// StateKey returns where the state of a rule is kept.
func StateKey(prefix string, b policy.MatchedRule) string { return prefix + "r:" + RuleName(b) }

// RuleName returns the name of a rule among all of its provider: its node and its name there.
func RuleName(b policy.MatchedRule) string { return Path(b.Scope.String()) + ":" + Escape(b.Rule.Name) }

// LineKey returns where the tasks of one scope wait in one asynq queue.
func LineKey(prefix, queue, path string) string { return prefix + "q:" + Escape(queue) + ":" + path }

// Waiter returns the name of a task among those that wait: its asynq queue and its id.
func Waiter(queue, id string) string { return Escape(queue) + ":" + id }

// Escape writes a name so that none can end its part of a key, open a hash tag or be a pattern in an ACL or KEYS: every ASCII
// byte but letters, digits and "-._~" becomes %XX. Two names never become one.
func Escape(name string) string {
	plain := 0
	for plain < len(name) && keeps(name[plain]) {
		plain++
	}
	if plain == len(name) {
		return name
	}
	text := []byte(name[:plain])
	for _, c := range []byte(name[plain:]) {
		if keeps(c) {
			text = append(text, c)
		} else {
			text = fmt.Appendf(text, "%%%02X", c)
		}
	}
	return string(text)
}

func keeps(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~' || c >= 0x80
}

// Unescape returns the name that Escape was given.
func Unescape(text string) string {
	name, err := url.PathUnescape(text)
	if err != nil { // Escape has not written it
		return text
	}
	return name
}
