package upstream

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// now is when every answer here is read, unless it has a Date of its own.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// answer reads the header's lines as they stand on the wire.
func answer(t testing.TB, lines string) http.Header {
	t.Helper()
	h := http.Header{}
	for line := range strings.Lines(lines) {
		line = strings.TrimRight(strings.TrimLeft(line, "\t"), "\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("%q is no header line", line)
		}
		h.Add(name, strings.TrimPrefix(value, " "))
	}
	return h
}

// quota is one with every number told.
func quota(source, name, unit string, limit, remaining int64, reset, window time.Duration) Quota {
	return Quota{Name: name, Unit: unit, Limit: limit, Remaining: remaining, Reset: reset, Window: window, Source: source}
}

// refused is a refusal under any status.
func refused(status int, retry time.Duration, quotas ...Quota) Hint {
	return Hint{Limited: true, Status: status, Retry: retry, RetryKnown: true, Names: exhausted(quotas), Quotas: quotas}
}

// rateOf is what Amazon reports.
func rateOf(limit int64, window time.Duration) Quota {
	q := quota("x-amzn-ratelimit", "", "requests", limit, Unknown, Unknown, window)
	q.Rate = true
	return q
}

func limited(retry time.Duration, quotas ...Quota) Hint {
	return refused(http.StatusTooManyRequests, retry, quotas...)
}

func told(quotas ...Quota) Hint { return Hint{Quotas: quotas} }

type reading struct {
	status int
	header string
	want   Hint
}

func check(t *testing.T, rows map[string]reading) {
	t.Helper()
	for name, row := range rows {
		if got := Read(row.status, answer(t, row.header), now); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, row.want)
		}
	}
}

// The answers of vendors, with the values that their documentation shows.
func TestVendors(t *testing.T) {
	t.Parallel()
	check(t, map[string]reading{
		"GitHub": {200, `
			Date: Mon, 01 Jul 2013 17:27:06 GMT
			x-ratelimit-limit: 60
			x-ratelimit-remaining: 56
			x-ratelimit-used: 4
			x-ratelimit-reset: 1372700873
			x-ratelimit-resource: core`,
			told(quota("x-ratelimit", "core", "requests", 60, 56, 1247*time.Second, 0))},
		"GitHub, secondary limit": {403, "Retry-After: 60", refused(403, time.Minute)},
		"OpenAI": {200, `
			x-ratelimit-limit-requests: 60
			x-ratelimit-limit-tokens: 150000
			x-ratelimit-remaining-requests: 59
			x-ratelimit-remaining-tokens: 149984
			x-ratelimit-reset-requests: 1s
			x-ratelimit-reset-tokens: 6m0s
			x-ratelimit-limit-project-tokens: 300000
			x-ratelimit-remaining-project-tokens: 300000
			x-ratelimit-reset-project-tokens: 0s`,
			told(quota("x-ratelimit", "", "project-tokens", 300000, 300000, 0, 0),
				quota("x-ratelimit", "", "requests", 60, 59, time.Second, 0),
				quota("x-ratelimit", "", "tokens", 150000, 149984, 6*time.Minute, 0))},
		"Azure OpenAI": {429, `
			Retry-After: 6
			retry-after-ms: 5730
			x-ms-retry-after-ms: 5731
			x-ratelimit-remaining-tokens: 0
			x-ratelimit-remaining-requests: 12
			x-ratelimit-reset-requests: 10`,
			limited(5730*time.Millisecond,
				quota("x-ratelimit", "", "requests", Unknown, 12, 10*time.Second, 0),
				quota("x-ratelimit", "", "tokens", Unknown, 0, Unknown, 0))},
		"Azure, Resource Manager": {200, `
			x-ms-ratelimit-remaining-subscription-reads: 11999
			x-ms-ratelimit-remaining-resource: Microsoft.Compute/HighCostGet;107`,
			told(quota("x-ms-ratelimit", "", "subscription-reads", Unknown, 11999, Unknown, 0))},
		"Anthropic": {429, `
			Date: Sat, 25 Oct 2025 11:59:30 GMT
			retry-after: 31
			anthropic-ratelimit-requests-limit: 50
			anthropic-ratelimit-requests-remaining: 49
			anthropic-ratelimit-requests-reset: 2025-10-25T12:00:00Z
			anthropic-ratelimit-input-tokens-limit: 40000
			anthropic-ratelimit-input-tokens-remaining: 0
			anthropic-ratelimit-input-tokens-reset: 2025-10-25T12:00:01Z
			anthropic-ratelimit-output-tokens-limit: 8000
			anthropic-ratelimit-output-tokens-remaining: 8000
			anthropic-ratelimit-output-tokens-reset: 2025-10-25T11:59:30Z
			anthropic-ratelimit-tokens-limit: 48000
			anthropic-ratelimit-tokens-remaining: 8000
			anthropic-ratelimit-tokens-reset: 2025-10-25T12:00:01Z
			anthropic-priority-input-tokens-limit: 10000
			anthropic-priority-input-tokens-remaining: 9618
			anthropic-priority-input-tokens-reset: 2025-01-12T23:11:59Z`,
			limited(31*time.Second,
				quota("anthropic-priority", "", "input-tokens", 10000, 9618, 0, 0),
				quota("anthropic-ratelimit", "", "input-tokens", 40000, 0, 31*time.Second, 0),
				quota("anthropic-ratelimit", "", "output-tokens", 8000, 8000, 0, 0),
				quota("anthropic-ratelimit", "", "requests", 50, 49, 30*time.Second, 0),
				quota("anthropic-ratelimit", "", "tokens", 48000, 8000, 31*time.Second, 0))},
		"Stripe": {429, "Stripe-Rate-Limited-Reason: endpoint-rate", Hint{Limited: true, Status: 429}},
		"Shopify": {200, "X-Shopify-Shop-Api-Call-Limit: 32/40",
			told(quota("x-shopify", "", "requests", 40, 8, Unknown, 0))},
		"Shopify, exceeded": {429, "X-Shopify-Shop-Api-Call-Limit: 41/40\nRetry-After: 2.0",
			limited(2*time.Second, quota("x-shopify", "", "requests", 40, 0, Unknown, 0))},
		"Salesforce": {200, "Sforce-Limit-Info: api-usage=18/5000; per-app-api-usage=17/250(appName=sample-connected-app)",
			told(quota("sforce", "", "requests", 5000, 4982, Unknown, day))},
		"Salesforce, exceeded": {403, "Sforce-Limit-Info: api-usage=5003/5000",
			told(quota("sforce", "", "requests", 5000, 0, Unknown, day))},
		"Salesforce, nonsense": {200, "Sforce-Limit-Info: api-usage=many/5000, usage=18/5000", Hint{}},
		"Discord, exceeded": {429, `
			Retry-After: 65
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 1470173023.123
			X-RateLimit-Reset-After: 64.57
			X-RateLimit-Bucket: abcd1234
			X-RateLimit-Scope: user
			X-RateLimit-Global: true`,
			limited(65*time.Second, quota("x-ratelimit", "", "requests", 10, 0, 64570*time.Millisecond, 0))},
		"X, by day": {200, `
			Date: Sun, 01 Mar 2026 11:50:00 GMT
			x-rate-limit-limit: 1200000
			x-rate-limit-remaining: 1199999
			x-rate-limit-reset: 1772366400
			x-app-limit-24hour-limit: 50
			x-app-limit-24hour-remaining: 49
			x-app-limit-24hour-reset: 1772452800
			x-user-limit-24hour-limit: 25
			x-user-limit-24hour-remaining: 24
			x-user-limit-24hour-reset: 1772452800`,
			told(quota("x-ratelimit", "", "requests", 1200000, 1199999, 10*time.Minute, 0),
				quota("x-app-limit", "", "requests", 50, 49, day+10*time.Minute, day),
				quota("x-user-limit", "", "requests", 25, 24, day+10*time.Minute, day))},
		"Amazon": {200, "x-amzn-RateLimit-Limit: 5.0",
			told(rateOf(5, time.Second))},
		"Amazon, slow": {429, "x-amzn-RateLimit-Limit: 0.0167",
			Hint{Limited: true, Status: 429, Quotas: []Quota{rateOf(1, 59880239521)}}},
		"HubSpot": {200, `
			X-HubSpot-RateLimit-Daily: 250000
			X-HubSpot-RateLimit-Daily-Remaining: 249998
			X-HubSpot-RateLimit-Interval-Milliseconds: 10000
			X-HubSpot-RateLimit-Max: 100
			X-HubSpot-RateLimit-Remaining: 98
			X-HubSpot-RateLimit-Secondly: 10
			X-HubSpot-RateLimit-Secondly-Remaining: 9`,
			told(quota("x-hubspot-ratelimit", "", "requests", 10, 9, Unknown, time.Second),
				quota("x-hubspot-ratelimit", "", "requests", 100, 98, Unknown, 10*time.Second),
				quota("x-hubspot-ratelimit", "", "requests", 250000, 249998, Unknown, day))},
		"Kong": {200, `
			RateLimit-Limit: 6
			RateLimit-Remaining: 4
			RateLimit-Reset: 47
			X-RateLimit-Limit-Minute: 6
			X-RateLimit-Remaining-Minute: 4
			X-RateLimit-Limit-Hour: 100
			X-RateLimit-Remaining-Hour: 98`,
			told(quota("x-ratelimit", "", "requests", 6, 4, 47*time.Second, time.Minute),
				quota("x-ratelimit", "", "requests", 100, 98, Unknown, time.Hour))},
		"Okta": {200, `
			Date: Thu, 31 Dec 2020 23:59:20 GMT
			X-Rate-Limit-Limit: 1200
			X-Rate-Limit-Remaining: 1199
			X-Rate-Limit-Reset: 1609459200`,
			told(quota("x-ratelimit", "", "requests", 1200, 1199, 40*time.Second, 0))},
		"Zendesk": {200, `
			x-rate-limit: 700
			ratelimit-limit: 700
			x-rate-limit-remaining: 699
			ratelimit-remaining: 699
			ratelimit-reset: 41
			zendesk-ratelimit-tickets-index: total=100; remaining=99; resets=41`,
			told(quota("ratelimit", "", "requests", 700, 699, 41*time.Second, 0),
				quota("zendesk-ratelimit", "tickets-index", "requests", 100, 99, 41*time.Second, 0))},
		"Zendesk, elsewhere": {200, "X-Rate-Limit: 700\nX-Rate-Limit-Remaining: 699",
			told(quota("x-ratelimit", "", "requests", 700, 699, Unknown, 0))},
		"Cloudflare": {200, `
			Ratelimit: "default";r=50;t=30
			Ratelimit-Policy: "default";q=100;w=60`,
			told(quota("ratelimit", "default", "requests", 100, 50, 30*time.Second, time.Minute))},
		"Slack": {429, "Retry-After: 30", limited(30 * time.Second)},
		"GitLab": {429, `
			Date: Tue, 05 Jan 2021 10:59:30 GMT
			RateLimit-Limit: 60
			RateLimit-Name: throttle_authenticated_web
			RateLimit-Observed: 67
			RateLimit-Remaining: 0
			RateLimit-Reset: 1609844400
			RateLimit-ResetTime: Tue, 05 Jan 2021 11:00:00 GMT
			Retry-After: 30`,
			limited(30*time.Second, quota("ratelimit", "throttle_authenticated_web", "requests", 60, 0, 30*time.Second, 0))},
		"Reddit": {200, `
			x-ratelimit-remaining: 598.0
			x-ratelimit-used: 2
			x-ratelimit-reset: 480`,
			told(quota("x-ratelimit", "", "requests", Unknown, 598, 480*time.Second, 0))},
		"Envoy": {429, `
			x-ratelimit-limit: 10, 10;w=1;name="per-second", 50;w=60
			x-ratelimit-remaining: 0
			x-ratelimit-reset: 1`,
			limited(time.Second,
				quota("x-ratelimit", "", "requests", 10, 0, time.Second, time.Second),
				quota("x-ratelimit", "", "requests", 50, Unknown, Unknown, time.Minute))},
		"Mistral": {200, `
			x-ratelimit-limit-req-minute: 60
			x-ratelimit-remaining-req-minute: 59
			x-ratelimit-limit-tokens-month: 1000000000
			x-ratelimit-remaining-tokens-month: 999999000`,
			told(quota("x-ratelimit", "", "requests", 60, 59, Unknown, time.Minute),
				quota("x-ratelimit", "", "tokens", 1000000000, 999999000, Unknown, 31*day))},
	})
}

// What says "later" is a limit, whatever its status.
func TestStatus(t *testing.T) {
	t.Parallel()
	const spent = "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 9"
	q := quota("x-ratelimit", "", "requests", 5, 0, 9*time.Second, 0)
	check(t, map[string]reading{
		"429 with nothing":                {429, "", Hint{Limited: true, Status: 429}},
		"429 with nonsense":               {429, "Retry-After: soon", Hint{Limited: true, Status: 429}},
		"429 with Retry-After":            {429, "Retry-After: 7", limited(7 * time.Second)},
		"429 with a spent quota":          {429, spent, limited(9*time.Second, q)},
		"429 with both":                   {429, spent + "\nRetry-After: 7", limited(7*time.Second, q)},
		"429 with a quota that has units": {429, "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 9", Hint{Limited: true, Status: 429, Quotas: []Quota{quota("x-ratelimit", "", "requests", 5, 1, 9*time.Second, 0)}}},
		"429 with two spent quotas": {429, spent + "\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 11s\nx-ratelimit-remaining-images: 0",
			limited(11*time.Second, quota("x-ratelimit", "", "images", Unknown, 0, Unknown, 0), q, quota("x-ratelimit", "", "tokens", Unknown, 0, 11*time.Second, 0))},
		"503 with nothing":         {503, "", Hint{Failed: true, Status: 503}},
		"503 with nonsense":        {503, "Retry-After: soon", Hint{Failed: true, Status: 503}},
		"503 with Retry-After":     {503, "Retry-After: 7", refused(503, 7*time.Second)},
		"503 with milliseconds":    {503, "x-ms-retry-after-ms: 7", refused(503, 7*time.Millisecond)},
		"503 with a spent quota":   {503, spent, refused(503, 9*time.Second, q)},
		"403 with a spent quota":   {403, spent, refused(403, 9*time.Second, q)},
		"403 with units left":      {403, "X-RateLimit-Remaining: 4988\nX-RateLimit-Reset: 9", told(quota("x-ratelimit", "", "requests", Unknown, 4988, 9*time.Second, 0))},
		"403 with no reset":        {403, "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0", told(quota("x-ratelimit", "", "requests", 5, 0, Unknown, 0))},
		"404 under a quota of 1":   {404, "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 9", told(quota("x-ratelimit", "", "requests", 1, 0, 9*time.Second, 0))},
		"418 with Retry-After":     {418, "Retry-After: 120", refused(418, 2*time.Minute)},
		"403 with no sense":        {403, "Retry-After: 9223372036854775807", Hint{Limited: true, Status: 403}},
		"200 with a spent quota":   {200, spent, told(q)},
		"202 with Retry-After":     {202, "Retry-After: 7", Hint{}},
		"400 with Retry-After":     {400, "Retry-After: 7", refused(400, 7*time.Second)},
		"599 with Retry-After":     {599, "Retry-After: 7", refused(599, 7*time.Second)},
		"600 with Retry-After":     {600, "Retry-After: 7", Hint{}},
		"no status, nothing":       {0, "", Hint{}},
		"200 with nothing of ours": {200, "Content-Type: text/plain\nServer: x\nDate: Sun, 01 Mar 2026 12:00:00 GMT", Hint{}},
	})
	if got := Read(503, http.Header{"Retry-After": nil, "X-Ratelimit-Limit": {}}, now); !reflect.DeepEqual(got, Hint{Failed: true, Status: 503}) {
		t.Errorf("no values: %+v", got)
	}
	if got := Read(200, nil, time.Time{}); !reflect.DeepEqual(got, Hint{}) {
		t.Errorf("no header: %+v", got)
	}
}
