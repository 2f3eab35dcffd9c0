package dialect

import (
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Amazon's Selling Partner API has a token bucket for each operation, of an application in a seller's account, and sometimes another of
// the application. A 429 has the code QuotaExceeded and no time. X-Amzn-RateLimit-Limit, where it is sent, is the rate at which the
// bucket fills, from some requests a second to one in minutes: the next request goes when it has filled by one.
var amazon = &Dialect{
	Name:   "amazon",
	Source: "https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits",
	Date:   "2026-11",
	Table: upstream.Table{
		NamePaths: []string{"errors.code"},
		More:      waitForToken,
	},
}

// waitForToken makes the first pause as long as the bucket takes for a request, if that is longer than a second.
func waitForToken(h *upstream.Hint, _ upstream.Body) {
	for _, q := range h.Quotas {
		if wait := q.Window / time.Duration(max(q.Limit, 1)); h.Limited && q.Rate && wait > time.Second {
			h.Pause = wait
		}
	}
}
