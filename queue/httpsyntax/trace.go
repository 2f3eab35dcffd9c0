package httpsyntax

import (
	"strings"
)

// The headers of a W3C trace context, as requests and tasks carry them.
const (
	Traceparent = "traceparent"
	Tracestate  = "tracestate"
)

const (
	maxTraceparent = 256 // of a later version; the present one has 55 bytes
	maxTracestate  = 512 // as far as the specification asks for
	maxMembers     = 32
	maxStateKey    = 256
	maxStateValue  = 256
)

// ValidTraceparent reports whether text is a version, a trace id, a span id and flags, in lower-case
// hexadecimal. Later versions may be longer.
func ValidTraceparent(text string) bool {
	parts := strings.SplitN(text, "-", 5)
	if len(parts) < 4 || len(text) > maxTraceparent || parts[0] == "ff" || parts[0] == "00" && len(parts) > 4 {
		return false
	}
	for i, length := range []int{2, 32, 16, 2} {
		if len(parts[i]) != length || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}

// ValidTracestate reports whether text is a list of at most 32 members KEY=VALUE divided by commas, no
// key twice, of at most 512 bytes. Such a list may be empty, and so may members.
func ValidTracestate(text string) bool {
	if len(text) > maxTracestate {
		return false
	}
	known := map[string]bool{}
	for member := range strings.SplitSeq(text, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if known[key] || len(known) == maxMembers || !validStateKey(key) || !validStateValue(value) {
			return false
		}
		known[key] = true
	}
	return true
}

// validStateKey accepts the keys of both levels of the specification.
func validStateKey(key string) bool {
	const letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	return key != "" && len(key) <= maxStateKey && strings.Contains(letters+digits, key[:1]) &&
		strings.Trim(key, letters+digits+"_-*/@") == "" && strings.Count(key, "@") <= 1 && !strings.HasSuffix(key, "@")
}

func validStateValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return value != "" && len(value) <= maxStateValue
}
