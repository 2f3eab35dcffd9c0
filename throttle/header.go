package throttle

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Header returns the fields that report the decision to an HTTP caller: RateLimit and RateLimit-Policy of the IETF draft
// "RateLimit header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers), with one item for each rule; and Retry-After, in
// whole seconds rounded up, for a denial that a clock ends. It names a rule by its place in the policy, payments/*:tenant, so
// that no name from a task appears in a header. LegacyHeader returns the older fields. It does no I/O.
func (d Decision) Header() http.Header {
	h := make(http.Header, 3)
	d.SetHeader(h)
	return h
}

// SetHeader sets the fields of Header in h, for servers: it allocates less. It does no I/O.
func (d *Decision) SetHeader(h http.Header) {
	limits, policies := make([]byte, 0, 48*len(d.Rules)), make([]byte, 0, 48*len(d.Rules)) // it is written for each request of a server
	for i := range d.Rules {
		r := &d.Rules[i]
		if i > 0 {
			limits, policies = append(limits, ", "...), append(policies, ", "...)
		}
		limits = strconv.AppendInt(append(appendName(limits, r), ";r="...), r.Remaining, 10)
		if r.ResetAfter != Never {
			limits = strconv.AppendInt(append(limits, ";t="...), seconds(r.ResetAfter), 10)
		}
		policies = strconv.AppendInt(append(appendName(policies, r), ";q="...), r.Limit, 10)
		switch {
		case r.Algorithm == policy.Concurrency:
			policies = append(policies, `;qu="concurrent-requests"`...)
		case r.Window != Never:
			policies = strconv.AppendInt(append(policies, ";w="...), seconds(r.Window), 10)
		}
	}
	if len(limits) > 0 {
		h["Ratelimit"], h["Ratelimit-Policy"] = []string{string(limits)}, []string{string(policies)}
	}
	if !d.Allowed && d.RetryAfter != Never {
		h.Set("Retry-After", strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	}
}

// LegacyHeader returns the older fields that many callers still read, for the binding rule alone: X-RateLimit-Limit and
// X-RateLimit-Remaining in the rule's own unit, and X-RateLimit-Reset, the seconds from now until the rule is as if nothing had
// been taken, rounded up. X-RateLimit-Reset is left out if no clock can tell. All are left out if no rule binds: the scope has no
// rules, or an API's answer has paused it. They name no rule, and Retry-After is only in Header. It does no I/O.
func (d Decision) LegacyHeader() http.Header {
	h := http.Header{}
	r, ok := d.BindingRule()
	if !ok {
		return h
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(r.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(r.Remaining, 10))
	if r.ResetAfter != Never {
		h.Set("X-RateLimit-Reset", strconv.FormatInt(seconds(r.ResetAfter), 10))
	}
	return h
}

// window is how long a rule's limit takes to come back in full, Never if no clock can tell. A calendar's period is the plan's to
// say.
func window(r policy.Rule) time.Duration {
	switch {
	case r.Algorithm == policy.Concurrency || r.Limit == 0:
		return Never
	case r.Algorithm == policy.TokenBucket:
		full := math.Ceil(float64(r.Per) / float64(r.Limit) * float64(r.Capacity()))
		return time.Duration(min(full, float64(Never/2)))
	}
	return r.Per
}

// appendName writes a rule's place in the policy as a structured-field string.
func appendName(b []byte, r *RuleState) []byte {
	b = append(b, '"')
	b = appendText(b, r.Pattern)
	b = append(b, ':')
	b = appendText(b, r.Rule)
	return append(b, '"')
}

// appendText writes what a structured-field string holds: printable ASCII, the rest as %XX.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = fmt.Appendf(b, "%%%02X", c)
		default:
			b = append(b, c)
		}
	}
	return b
}
