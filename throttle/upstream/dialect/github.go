package dialect

import (
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// GitHub counts the requests of a user or of an installation an hour, by resource: core (REST), graphql (points), search and others.
// The primary limit is refused with 403 or 429, or 200 by GraphQL, with nothing remaining and the time of the reset. Secondary limits
// hold for REST and GraphQL together: 100 concurrent requests, 900 points a minute of a REST endpoint and 2,000 of GraphQL, 80 new pieces
// of content a minute and 500 an hour.
// They are refused with 403 or 429, or 200 by GraphQL, and often only the message says so: "wait for at least one minute", then
// exponentially longer. Calls during a limit "may result in the banning of your integration", so all of the account waits.
var github = &Dialect{
	Name:   "github",
	Source: "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases: []upstream.Case{
			{JSON: "message~secondary rate limit", Wait: time.Minute, Scope: upstream.ScopeTop},
			{Status: 200, JSON: "errors.message~secondary rate limit", Wait: time.Minute, Scope: upstream.ScopeTop},
			// RATE_LIMITED, with nothing remaining. Clients also report RATE_LIMIT with the code graphql_rate_limit while points remain.
			{Status: 200, JSON: "errors.type~RATE_LIMIT", Wait: time.Minute, Scope: upstream.ScopeTop},
		},
		Reasons: map[string]string{"core": upstream.ScopeTop, "graphql": upstream.ScopeTop},
		More:    func(h *upstream.Hint, _ upstream.Body) { setWindows(h, githubWindow) },
	},
}

// githubWindow returns the window of a resource's limit, which no answer has.
func githubWindow(q upstream.Quota) time.Duration {
	return map[string]time.Duration{
		"core": time.Hour, "graphql": time.Hour, "search": time.Minute, "code_search": time.Minute,
	}[q.Name]
}
