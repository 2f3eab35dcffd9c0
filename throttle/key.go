package throttle

import "strings"

// keyspace names the keys that a limiter keeps in Redis.
//
//	hw:{payments}:account             rule "account" of payments
//	hw:{payments}/acme:tenant         rule "tenant" of payments/acme
//	hw:{payments}/acme:parallel:held  the runs under a concurrency rule
//	hw:{payments}@k3Jq…               one attempt's grant
//	hw:members                        the live processes, for shares of a limit
//
// All keys of a provider have its name as their hash tag and so share a cluster
// slot. Limits are no part of a name: changing one keeps what has been spent.
// A name may be a customer's; whoever can list keys can read it.
type keyspace string

func (k keyspace) provider(name string) string {
	return string(k) + ":{" + escape(name) + "}"
}

func (k keyspace) rule(b Bound) string {
	provider, rest, nested := strings.Cut(b.Scope.String(), "/")
	key := k.provider(provider)
	if nested {
		for name := range strings.SplitSeq(rest, "/") {
			key += "/" + escape(name)
		}
	}
	key += ":" + escape(b.Rule.Name)
	if b.Rule.Algorithm == Concurrency {
		key += ":held"
	}
	return key
}

func (k keyspace) members() string { return string(k) + ":members" }

// escape writes a name so that none can end its part of a key, open a hash tag
// or be a pattern in an ACL or KEYS: every ASCII byte but letters, digits and
// "-._~" becomes %XX. Two names never become one.
func escape(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && keepsItsByte(name[i])
	}
	if plain {
		return name
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; keepsItsByte(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

func keepsItsByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~' || c >= 0x80
}
