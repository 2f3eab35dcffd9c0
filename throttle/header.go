package throttle

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Header returns the fields that tell an HTTP caller of the decision: RateLimit
// and RateLimit-Policy of the IETF draft "RateLimit header fields for HTTP"
// (draft-ietf-httpapi-ratelimit-headers), one item for each rate rule, named by
// level and rule; and Retry-After, in whole seconds rounded up, for a denial
// whose end a clock can tell. Rules are named by their place in the policy, so
// no tenant's name leaves by a header.
func (d Decision) Header() http.Header {
	h := http.Header{}
	var limits, policies []string
	for _, r := range d.Rules {
		name := quoted(r.Pattern)
		limit := name + ";r=" + strconv.FormatInt(r.Remaining, 10)
		if r.ResetAfter != Unknown {
			limit += ";t=" + strconv.FormatInt(seconds(r.ResetAfter), 10)
		}
		policy := name + ";q=" + strconv.FormatInt(r.Limit, 10)
		if r.window > 0 {
			policy += ";w=" + strconv.FormatInt(seconds(r.window), 10)
		}
		limits, policies = append(limits, limit), append(policies, policy)
	}
	if len(limits) > 0 {
		h.Set("RateLimit", strings.Join(limits, ", "))
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if !d.Allowed && d.RetryAfter != Unknown {
		h.Set("Retry-After", strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	}
	return h
}

// window is how long a rule's limit takes to come back in full.
func window(r Rule) time.Duration {
	if r.Algorithm == TokenBucket && r.Limit > 0 {
		return time.Duration(float64(r.Per) * float64(r.Capacity()) / float64(r.Limit))
	}
	return r.Per
}

// quoted writes a structured-field string: printable ASCII, the rest as %XX.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			b.WriteString("%" + strings.ToUpper(strconv.FormatInt(int64(c)|0x100, 16)[1:]))
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
