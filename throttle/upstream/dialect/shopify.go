package dialect

import (
	"math"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Shopify counts the cost of GraphQL queries in points, of an app in a store: a bucket that is restored at 100, 200, 1000 or 2000
// points a second, by the store's plan. A query needs its requested cost, and gets back what it did not use. Each answer says in
// extensions.cost what it cost and what is left. A throttled query is answered with 200 and the code THROTTLED, and costs nothing. The
// older REST API counts calls, and answers 429 with a Retry-After. A 429 about the variants that a large store may create in a day is none
// for other calls: the page has the limit, and public clients know it by its message.
var shopify = &Dialect{
	Name:   "shopify",
	Source: "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases: []upstream.Case{
			{Status: 200, JSON: "errors.extensions.code=THROTTLED"},
			{Status: 429, Body: "Daily variant creation limit", Means: upstream.Fine},
		},
		Bodies: true,
		More:   readQueryCost,
	},
}

// readQueryCost reads extensions.cost, as far as it is there: throttleStatus may be absent.
func readQueryCost(h *upstream.Hint, body upstream.Body) {
	requested, asked := number(body, "extensions.cost.requestedQueryCost")
	actual, ran := number(body, "extensions.cost.actualQueryCost")
	switch {
	case h.Limited && asked:
		h.Costs = map[string]int64{"points": 0}
	case ran:
		h.Costs = map[string]int64{"points": int64(math.Ceil(actual))}
	}

	rate, restored := number(body, "extensions.cost.throttleStatus.restoreRate")
	left, known := number(body, "extensions.cost.throttleStatus.currentlyAvailable")
	if !restored || !known || rate < 1 {
		return
	}
	if len(h.Quotas) < upstream.MaxQuotas {
		h.Quotas = append(h.Quotas, upstream.Quota{
			Unit: "points", Limit: int64(rate), Remaining: int64(left), Reset: upstream.Unknown, Window: time.Second, Rate: true, Source: "shopify",
		})
	}
	if h.Limited && !h.RetryKnown && asked && requested > left {
		wait := math.Ceil((requested - left) / rate * float64(time.Second))
		h.Retry, h.RetryKnown = time.Duration(min(wait, float64(upstream.MaxWait))), true
	}
}
