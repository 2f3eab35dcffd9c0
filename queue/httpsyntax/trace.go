package httpsyntax

import (
	"regexp"
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
)

var (
	traceparent = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)
	stateKey    = regexp.MustCompile(`^[a-z0-9][a-z0-9_*/-]*(@[a-z0-9_*/-]+)?$`) // of both levels of the specification
	stateValue  = regexp.MustCompile(`^[ -+\--<>-~]{1,256}$`)                    // neither comma nor equals sign
)

// ValidTraceparent reports whether text is a version, a trace id, a span id and flags, in lower-case
// hexadecimal. Later versions may be longer.
func ValidTraceparent(text string) bool {
	parts := traceparent.FindStringSubmatch(text)
	if parts == nil || len(text) > maxTraceparent || parts[1] == "ff" || parts[1] == "00" && parts[4] != "" {
		return false
	}
	return strings.Trim(parts[2], "0") != "" && strings.Trim(parts[3], "0") != ""
}

// ValidTracestate reports whether text is a list of at most 32 members KEY=VALUE divided by commas, no
// key twice, of at most 512 bytes. Such a list may be empty, and so may members.
func ValidTracestate(text string) bool {
	known := map[string]bool{}
	for member := range strings.SplitSeq(text, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if known[key] || len(key) > 256 || !stateKey.MatchString(key) || !stateValue.MatchString(value) {
			return false
		}
		known[key] = true
	}
	return len(text) <= maxTracestate && len(known) <= maxMembers
}
