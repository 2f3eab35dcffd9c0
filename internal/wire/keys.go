package wire

import (
	"strings"

	"github.com/headway-go/headway/throttle/policy"
)

// Prefix returns what the keys of a provider begin with, such as "hw:{payments}:". All share its hash tag, and so a slot of a
// cluster. base is throttle.Config.Prefix.
func Prefix(base, provider string) string { return base + ":{" + Escape(provider) + "}:" }

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
	plain := true
	for i := range len(name) {
		plain = plain && keeps(name[i])
	}
	if plain {
		return name
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; keeps(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

func keeps(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~' || c >= 0x80
}

// Unescape returns the name that Escape was given.
func Unescape(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			b.WriteByte(fromHex(text[i+1])<<4 | fromHex(text[i+2]))
			i += 2
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func fromHex(c byte) byte {
	if c >= 'A' {
		return c - 'A' + 10
	}
	return c - '0'
}
