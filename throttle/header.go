package throttle

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Header returns the fields that report the decision to an HTTP caller: RateLimit and RateLimit-Policy of the IETF draft
// "RateLimit header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers), with one item for each rule; and Retry-After, in
// whole seconds rounded up, for a denial that a clock ends. It names a rule by its place in the policy, payments/*:tenant, so
// that no name from a task appears in a header. LegacyHeader returns the older fields. It does no I/O.
func (d Decision) Header() http.Header {
	h := http.Header{}
	var limits, policies []string
	for i := range d.Rules {
		r := &d.Rules[i]
		name := quoted(r.Pattern + ":" + r.Rule)
		limit := name + ";r=" + strconv.FormatInt(r.Remaining, 10)
		if r.ResetAfter != Never {
			limit += ";t=" + strconv.FormatInt(seconds(r.ResetAfter), 10)
		}
		pol := name + ";q=" + strconv.FormatInt(r.Limit, 10)
		switch {
		case r.Algorithm == policy.Concurrency:
			pol += `;qu="concurrent-requests"`
		case r.Window != Never:
			pol += ";w=" + strconv.FormatInt(seconds(r.Window), 10)
		}
		limits, policies = append(limits, limit), append(policies, pol)
	}
	if len(limits) > 0 {
		h.Set("RateLimit", strings.Join(limits, ", "))
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if !d.Allowed && d.RetryAfter != Never {
		h.Set("Retry-After", strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	}
	return h
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

// quoted writes a structured-field string: printable ASCII, the rest as %XX.
func quoted(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteString(`\` + string(c))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
	return `"` + b.String() + `"`
}
