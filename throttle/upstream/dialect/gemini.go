package dialect

import "github.com/headway-go/headway/throttle/upstream"

// Gemini counts requests and input tokens a minute, and requests a day until midnight Pacific time, of a project and a model. A 429 of
// generateContent names the quotas by quotaId, and has a time in RetryInfo. That of a quota of the day may be a minute's, so it
// counts only if it is long. The Interactions API gives the code quota_exceeded for the day, and rate_limit_exceeded or
// too_many_requests otherwise. Credits and the project's monthly spend cap hold for the project. 402 means that credits are used up, but
// most answers have 429 and one of two messages. The page has neither these nor the names of quotas; many public logs and clients do.
var gemini = &Dialect{
	Name:   "gemini",
	Source: "https://ai.google.dev/gemini-api/docs/rate-limits",
	Date:   "2026-11",
	Table: upstream.Table{
		Usage: true,
		Cases: []upstream.Case{
			{Status: 402, Wait: spentWait, Scope: upstream.ScopeTop},
			{JSON: "error.message~prepayment credits are depleted", Wait: spentWait, Scope: upstream.ScopeTop},
			{JSON: "error.message~exceeded its monthly spending cap", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 429, JSON: "error.details.violations.quotaId~PerDay", Wait: spentWait},
			{Status: 429, JSON: "error.code=quota_exceeded", Wait: spentWait},
		},
		NamePaths: []string{"error.details.violations.quotaId"},
		WaitPaths: []string{"error.details.retryDelay"},
		More:      dropShortWait,
	},
}

// dropShortWait drops a time that is too short for what is used up.
func dropShortWait(h *upstream.Hint, _ upstream.Body) {
	if h.Pause == spentWait && h.Retry < spentWait {
		h.Retry, h.RetryKnown = 0, false
	}
}
