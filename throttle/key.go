package throttle

import (
	"github.com/headway-go/headway/throttle/policy"
	"strings"
)

// keyspace names the keys that a limiter keeps in Redis.
//
//	hw:{payments}:account             rule "account" of payments
//	hw:{payments}/acme:tenant         rule "tenant" of payments/acme
//	hw:{payments}/acme:parallel:held  the runs under a concurrency rule
//	hw:{payments}@k3Jq…               one attempt's grant
//	hw:{payments}@k3Jq…=              what an attempt was settled at
//	hw:{payments}/acme!kept:inv-1     a grant that is kept for later
//	hw:{payments}/acme/refunds!queue  the tasks of payments/acme/refunds that wait
//	hw:{payments}!schedule, !heap     which scopes are blocked, and the order of the others
//	hw:{payments}!meta                where scopes stand, and how much waits
//	hw:{payments}!flight, !overdue    who was granted a start and has not come
//	hw:{payments}!upstream            what the API has told of its limits
//	hw:{payments}!parked              the tasks that wait until their group goes on
//	hw:{payments}/acme!used:5m.179…   who spent from it, by package usage
//	hw:{payments}/acme!units:5m.17…   the same by unit, where tasks cost so
//	hw:{payments}/acme!shadows:5m.1…  what shadow rules would have done, by package usage
//	hw:turns                          the providers whose tasks wait
//	hw:members                        the live processes, for shares of a limit
//
// All keys of a provider have its name as their hash tag and so share a cluster
// slot. Limits are no part of a name: changing one keeps what has been spent.
// A name may be a customer's; whoever can list keys can read it.
type keyspace string

func (k keyspace) provider(name string) string {
	return string(k) + ":{" + escape(name) + "}"
}

func (k keyspace) rule(b policy.MatchedRule) string {
	key := k.scope(b.Scope) + ":" + escape(b.Rule.Name)
	if b.Rule.Algorithm == policy.Concurrency {
		key += ":held"
	}
	return key
}

// ScopeKey returns the beginning of a scope's keys, such as hw:{payments}/acme, for a Config.Prefix. A
// program that keeps data of its own beside the limiter's appends "!" and a word of its own.
func ScopeKey(prefix string, s policy.Scope) string { return keyspace(prefix).scope(s) }

// EscapeName returns a name as it is written in keys. Different names have different escapes, and an
// escaped name holds no character that divides the parts of a key. UnescapeName reverses it.
func EscapeName(name string) string { return escape(name) }

// UnescapeName returns the name that EscapeName was given.
func UnescapeName(text string) string { return unescape(text) }

// scope returns what the keys of a scope begin with.
func (k keyspace) scope(s policy.Scope) string {
	provider, rest, nested := strings.Cut(s.String(), "/")
	key := k.provider(provider)
	if nested {
		for name := range strings.SplitSeq(rest, "/") {
			key += "/" + escape(name)
		}
	}
	return key
}

// queue returns the key of those who wait of a scope.
func (k keyspace) queue(s policy.Scope) string { return k.scope(s) + "!queue" }

// queueShared returns the keys that the queues of a provider share, in the order in which scripts take them:
// schedule, heap, meta, flight, overdue, told, parked.
func queueShared(provider string) []any {
	return []any{
		scheduleKey(provider), provider + "!heap", metaKey(provider), flightKey(provider), overdueKey(provider),
		upstreamKey(provider), parkedKey(provider),
	}
}

func scheduleKey(provider string) string { return provider + "!schedule" }

func metaKey(provider string) string { return provider + "!meta" }

func overdueKey(provider string) string { return provider + "!overdue" }

func flightKey(provider string) string { return provider + "!flight" }

func parkedKey(provider string) string { return provider + "!parked" }

func upstreamKey(provider string) string { return provider + "!upstream" }

func (k keyspace) members() string { return string(k) + ":members" }

func (k keyspace) turns() string { return string(k) + ":turns" }

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

// unescape reads what escape wrote.
func unescape(text string) string {
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
