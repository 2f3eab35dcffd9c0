package upstream

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Which quota a field speaks of, by its name.
func TestNames(t *testing.T) {
	t.Parallel()
	type subject struct {
		source, unit string
		window       time.Duration
	}
	subjects := map[string]subject{
		"RateLimit-Limit": {"ratelimit", "requests", 0}, "Rate-Limit-Limit": {"ratelimit", "requests", 0},
		"Acme-RateLimit-Limit": {"acme-ratelimit", "requests", 0}, "Acme-API-RateLimit-Limit": {"acme-api-ratelimit", "requests", 0},
		"RateLimit-Limit-Tokens": {"ratelimit", "tokens", 0}, "RateLimit-Tokens-Limit": {"ratelimit", "tokens", 0},
		"Acme-RateLimit-Input-Tokens-Limit":      {"acme-ratelimit", "input-tokens", 0},
		"Acme-RateLimit-Limit-Tokens_v1.5":       {"acme-ratelimit", "tokens_v1.5", 0},
		"Anthropic-Priority-Output-Tokens-Limit": {"anthropic-priority", "output-tokens", 0},
		"X-RateLimit-Limit-Az09":                 {"x-ratelimit", "az09", 0}, "X-RateLimit-Limit-Token": {"x-ratelimit", "tokens", 0},
		"X-RateLimit-Limit-Super-Day": {"x-ratelimit", "super", day}, "X-RateLimit-Tokens-Hourly-Limit": {"x-ratelimit", "tokens", time.Hour},

		"X-RateLimit-Limit-" + strings.Repeat("a", 64): {"x-ratelimit", strings.Repeat("a", 64), 0},

		"X-App-Limit-24hour-Limit":  {"x-app-limit", "requests", day},
		"X-User-Limit-24hour-Limit": {"x-user-limit", "requests", day},

		// not ours
		"X-App-Limit-24hour": {}, "X-App-Limit-Limit": {},
		"X-RateLimit-Bucket": {}, "X-RateLimit-Scope": {}, "X-RateLimit-Policy": {}, "X-RateLimit-Day": {}, "X-RateLimit-": {"x-ratelimit", "requests", 0},
		"X-RateLimitBySize-Limit": {}, "XRateLimit-Limit": {}, "X-Separate-Limit": {}, "X-RateLimit-Limit-Remaining": {}, "X-RateLimit-Limit-Name": {},
		"X-RateLimit-Retry-After": {}, "X-Limit": {}, "Limit": {}, "X-RateLimit-Limit-a b": {}, "X-RateLimit-Limit-é": {}, "é-RateLimit-Limit": {},
		"X-RateLimit-Limit-" + strings.Repeat("a", 65): {}, strings.Repeat("a", 54) + "-RateLimit-Limit": {strings.Repeat("a", 54) + "-ratelimit", "requests", 0},
		strings.Repeat("a", 55) + "-RateLimit-Limit": {}, strings.Repeat("a", 4096) + "-RateLimit-Limit": {}, "X-RateLimit-Limit---": {}, "-RateLimit-Limit": {"-ratelimit", "requests", 0},
		"X-RateLimit-Limit-ſ": {}, "": {},
	}
	for name, window := range map[string]time.Duration{
		"X-RateLimit-Limit": 0, "x-rate-limit-limit": 0, "X-RATELIMIT-LIMIT": 0, "X-Rate-Limit": 0, "X-RateLimit-Max": 0, "X-RateLimit-Limit-Request": 0,
		"X-RateLimit-Limit-Second": time.Second, "X-RateLimit-Limit-Minute": time.Minute, "X-RateLimit-Limit-Hour": time.Hour,
		"X-RateLimit-Limit-Day": day, "X-RateLimit-Day-Limit": day, "X-RateLimit-Daily": day, "X-RateLimit-Limit-Daily-Requests": day,
		"X-RateLimit-Limit-Requests-Day": day, "X-RateLimit-Limit-Requests-Per-Day": day, "X-RateLimit-Limit-Per-Day": day,
		"X-RateLimit-Limit-Week": 7 * day, "X-RateLimit-Limit-Month": 31 * day, "X-RateLimit-Monthly": 31 * day, "X-RateLimit-Limit-Year": 366 * day,
	} {
		subjects[name] = subject{"x-ratelimit", "requests", window}
	}
	for name, want := range subjects {
		got := Read(200, http.Header{name: {"7"}}, now)
		exp := told(quota(want.source, "", want.unit, 7, Unknown, Unknown, want.window))
		if want.source == "" {
			exp = Hint{}
		}
		if !reflect.DeepEqual(got, exp) {
			t.Errorf("%q:\n got %+v\nwant %+v", name, got, exp)
		}
	}
}

// What an answer says twice is told once.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	const s = time.Second
	x := func(limit, remaining int64, reset, window time.Duration) Quota {
		return quota("x-ratelimit", "", "requests", limit, remaining, reset, window)
	}
	check(t, map[string]reading{
		"the draft over its earlier form": {200, `
			RateLimit: "a";r=5
			RateLimit-Limit: 20
			RateLimit-Remaining: 3`, told(ietf("a", Unknown, 5, Unknown, 0))},
		"the draft over x-ratelimit": {200, `
			RateLimit-Policy: "a";q=10;w=60
			RateLimit: "a";r=5
			X-RateLimit-Limit: 20
			X-RateLimit-Remaining: 3`, told(ietf("a", 10, 5, Unknown, time.Minute))},
		"a state is not left out for a policy": {429, `
			RateLimit-Policy: "a";q=10;w=60
			X-RateLimit-Limit: 20
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 3`, limited(3*s, ietf("a", 10, Unknown, Unknown, time.Minute), x(20, 0, 3*s, 0))},
		"a limit is": {200, `
			RateLimit-Policy: "a";q=10;w=60
			X-RateLimit-Limit: 20`, told(ietf("a", 10, Unknown, Unknown, time.Minute))},
		"the draft over x-ratelimit of the same window": {200, `
			RateLimit-Policy: "a";q=10;w=60
			X-RateLimit-Limit-Minute: 20
			X-RateLimit-Limit-Hour: 30`, told(ietf("a", 10, Unknown, Unknown, time.Minute), x(30, Unknown, Unknown, time.Hour))},
		"the same limit fills in": {200, `
			RateLimit-Policy: "a";q=10;w=60
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 3
			X-RateLimit-Reset: 60`, told(ietf("a", 10, 3, time.Minute, time.Minute))},
		"but not a reset beyond the window": {200, `
			RateLimit-Policy: "a";q=10;w=60
			RateLimit: "a";r=3
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 3
			X-RateLimit-Reset: 61`, told(ietf("a", 10, 3, Unknown, time.Minute))},
		"nor over what is told": {200, `
			RateLimit-Policy: "a";q=10;w=60
			RateLimit: "a";r=3;t=5
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 3
			X-RateLimit-Reset: 60`, told(ietf("a", 10, 3, 5*s, time.Minute))},
		"nor from another state": {200, `
			RateLimit-Policy: "a";q=10;w=60
			RateLimit: "a";r=3
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 4
			X-RateLimit-Reset: 60`, told(ietf("a", 10, 3, Unknown, time.Minute))},
		"units besides": {200, `
			RateLimit: "a";r=3
			x-ratelimit-remaining-requests: 4
			x-ratelimit-remaining-tokens: 5`, told(ietf("a", Unknown, 3, Unknown, 0),
			quota("x-ratelimit", "", "requests", Unknown, 4, Unknown, 0), quota("x-ratelimit", "", "tokens", Unknown, 5, Unknown, 0))},
		"a unit that is said and one that is not": {200, `
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 4
			X-RateLimit-Limit-Requests: 20
			X-RateLimit-Remaining-Requests: 5`, told(x(10, 4, Unknown, 0), x(20, 5, Unknown, 0))},
		"are one where they agree": {200, `
			X-RateLimit-Limit: 10
			X-RateLimit-Reset: 4
			X-RateLimit-Limit-Requests: 10
			X-RateLimit-Remaining-Requests: 5`, told(x(10, 5, 4*s, 0))},
		"whichever tells what is left": {200, `
			X-RateLimit-Limit: 10
			X-RateLimit-Remaining: 5
			X-RateLimit-Limit-Requests: 10`, told(x(10, 5, Unknown, 0))},
		"other windows besides": {200, `
			X-RateLimit-Limit: 10
			X-RateLimit-Limit-Day: 1000`, told(x(10, Unknown, Unknown, 0), x(1000, Unknown, Unknown, day))},
		"other units of the draft besides": {200, `
			RateLimit-Policy: "a";q=10;qu="content-bytes"
			X-RateLimit-Limit: 20`, told(inUnit(ietf("a", 10, Unknown, Unknown, 0), "content-bytes"), x(20, Unknown, Unknown, 0))},
	})
}

// A header with a million of these fields, or values, costs what it has in names: 64 fields and 8 values of each are read.
func TestFloods(t *testing.T) {
	t.Parallel()
	h := http.Header{"A-Ratelimit-Limit": slices.Repeat([]string{"5"}, 100_000)}
	for i := range 10_000 {
		h[fmt.Sprintf("X%05d-Ratelimit-Limit", i)] = []string{"5"}
	}
	h["Y-Ratelimit-Limit"] = []string{"6"}
	got := Read(200, h, now).Quotas
	if len(got) != MaxQuotas || got[0].Source != "a-ratelimit" || got[1].Source != "x00000-ratelimit" || got[15].Source != "x00014-ratelimit" {
		t.Errorf("%d: %+v", len(got), got)
	}
	f := collect(h)
	if len(f) != maxFields || len(f[0].values) != maxValues {
		t.Errorf("%d fields, %d values", len(f), len(f[0].values))
	}
	h = http.Header{"X-Ratelimit-Limit": slices.Repeat([]string{"5"}, 6), "x-ratelimit-limit": slices.Repeat([]string{"5"}, 6)}
	if f := collect(h); len(f) != 1 || len(f[0].values) != maxValues {
		t.Errorf("%+v", f)
	}
}
