package dialect

import (
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// HubSpot counts requests in 10 seconds of an app in an account (100 to 250, by its plan), and requests a day of the account until
// midnight in its time zone. Searches have 5 a second. A 429 names the limit in policyName, and gives no time. Its page has the names
// DAILY and TEN_SECONDLY_ROLLING; SECONDLY is in many clients, and needs no case. The page of errors has the others: 423 means that too
// much was written at once, for 2 seconds, and 477 with a Retry-After that the account is being moved.
var hubspot = &Dialect{
	Name:   "hubspot",
	Source: "https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases: []upstream.Case{
			{Status: 429, JSON: "policyName=DAILY", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 429, JSON: "policyName=TEN_SECONDLY_ROLLING", Wait: 10 * time.Second, Scope: upstream.ScopeTop},
			{Status: 423, Wait: 2 * time.Second},
			{Status: 477, Header: "Retry-After", Scope: upstream.ScopeTop},
		},
		NamePaths: []string{"policyName"},
		More:      dropSecondly,
	},
}

// dropSecondly drops the quota of X-HubSpot-RateLimit-Secondly: HubSpot still sends it, and does not enforce it any more.
func dropSecondly(h *upstream.Hint, _ upstream.Body) {
	h.Quotas = slices.DeleteFunc(h.Quotas, func(q upstream.Quota) bool { return q.Window == time.Second })
}
