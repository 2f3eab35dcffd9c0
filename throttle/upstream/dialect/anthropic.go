package dialect

import (
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Anthropic counts requests, input tokens and output tokens a minute, of an organization and a class of models, and says in
// Anthropic-RateLimit fields what is left. A 429 has a Retry-After, unless the organization's spend limit of the month is reached. A spend
// limit that the customer has set is refused with 400, a credit that is used up with 400 or 402. 529 means that the API is overloaded. The
// pages do not have the message "credit balance is too low": public logs and many clients do.
var anthropic = &Dialect{
	Name:   "anthropic",
	Source: "https://platform.claude.com/docs/en/api/errors",
	Date:   "2026-11",
	Table: upstream.Table{
		Usage: true,
		Cases: []upstream.Case{
			{Status: 429, JSON: "error.details.error_code=enforced_spend_limit_reached", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 400, JSON: "error.message~You have reached your specified", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 400, JSON: "error.message~credit balance is too low", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 402, JSON: "error.type=billing_error", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 529, Wait: overloadWait},
		},
		NamePaths: []string{"error.details.error_code"},
		More:      func(h *upstream.Hint, _ upstream.Body) { setWindows(h, anthropicWindow) },
	},
}

// anthropicWindow returns a minute for the limits of the organization.
func anthropicWindow(q upstream.Quota) time.Duration {
	if q.Source == "anthropic-ratelimit" {
		return time.Minute
	}
	return 0
}
