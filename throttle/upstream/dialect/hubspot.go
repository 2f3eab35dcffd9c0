package dialect

import (
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// HubSpot counts requests in 10 seconds of an app in an account (100 to 250, by its plan), and requests a day of the account until
// midnight in its time zone. Searches have 5 a second. A 429 names the limit in policyName, and gives a time only sometimes. 477 with a
// Retry-After means that the account is being moved.
var hubspot = &Dialect{
	Name:   "hubspot",
	Source: "https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases: []upstream.Case{
			{Status: 429, JSON: "policyName=DAILY", Wait: spentWait},
			{Status: 429, JSON: "policyName=TEN_SECONDLY_ROLLING", Wait: 10 * time.Second},
		},
		NamePaths: []string{"policyName"},
		More:      dropSecondly,
	},
}

// dropSecondly drops the quota of X-HubSpot-RateLimit-Secondly: HubSpot still sends it, and does not enforce it any more.
func dropSecondly(h *upstream.Hint, _ upstream.Body) {
	h.Quotas = slices.DeleteFunc(h.Quotas, func(q upstream.Quota) bool { return q.Window == time.Second })
}
