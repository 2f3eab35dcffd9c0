package dialect

import (
	"strings"

	"github.com/headway-go/headway/throttle/upstream"
)

// Atlassian (Jira and Confluence Cloud) has three kinds of limit at once: points an hour (65,000 for all tenants of an app, or a quota
// for each tenant that Atlassian grants), requests a second of a tenant, an endpoint and a method, and writes to one issue (20 in 2
// seconds, 100 in 30). A 429 has a Retry-After and names the limit in RateLimit-Reason. Only a quota of the app asks for a pause of all
// tenants; a tenant's holds back the scope of the call, since the table cannot know which level is the tenant's. Fields that begin with
// Beta- or X-Beta- are about limits that do not hold yet: package upstream skips them.
var atlassian = &Dialect{
	Name:   "atlassian",
	Source: "https://developer.atlassian.com/cloud/jira/platform/rate-limiting/",
	Date:   "2026-11",
	Table: upstream.Table{
		NameFields: []string{"RateLimit-Reason"},
		Reasons: map[string]string{
			"jira-quota-global-based":       upstream.ScopeTop,
			"jira-quota-tenant-based":       upstream.ScopeHere,
			"jira-burst-based":              upstream.ScopeHere,
			"jira-per-issue-on-write":       upstream.ScopeHere,
			"confluence-quota-global-based": upstream.ScopeTop,
			"confluence-quota-tenant-based": upstream.ScopeHere,
		},
		More: countPoints,
	},
}

// countPoints sets the unit of the quotas global-app-quota and tenant-app-quota, whose fields give none.
func countPoints(h *upstream.Hint, _ upstream.Body) {
	for i := range h.Quotas {
		if q := &h.Quotas[i]; strings.HasSuffix(q.Name, "-app-quota") {
			q.Unit = "points"
		}
	}
}
