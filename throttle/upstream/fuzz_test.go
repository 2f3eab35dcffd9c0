package upstream

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fuzzed makes a header of lines as they come, with names that no server would send.
func fuzzed(lines string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, _ := strings.Cut(line, ":")
		h[name] = append(h[name], value)
	}
	return h
}

// Whatever an answer says, the Advice is within its bounds, is the same each time, and leaves the header as it was.
func FuzzRead(f *testing.F) {
	for _, lines := range []string{
		"Retry-After:5\nDate:Sun, 01 Mar 2026 12:00:00 GMT",
		"Retry-After:Sun, 01 Mar 2026 12:00:00 GMT\nretry-after-ms:1.5\nX-Ms-Retry-After-Ms:-5",
		"RateLimit-Policy:\"burst\";q=100;w=60, \"d\\\"\\\\\";q=1;w=86400;pk=:YQ==:;x=?1;qu=\"content-bytes\"\nRateLimit:\"burst\";r=50;t=30",
		"RateLimit:limit=100, remaining=50, reset=30\nRateLimit-Policy:100;w=60",
		"RateLimit-Limit:100, 100;w=60\nRateLimit-Remaining:5\nRateLimit-Reset:1772366460\nX-RateLimit-Used:5",
		"x-ratelimit-limit-requests:60\nx-ratelimit-reset-requests:1d2h6m0.5s120ms\nx-ratelimit-remaining-requests:0",
		"anthropic-ratelimit-tokens-limit:5\nanthropic-ratelimit-tokens-reset:2026-03-01T12:00:30Z\nanthropic-priority-x-limit:4",
		"X-HubSpot-RateLimit-Max:5\nX-HubSpot-RateLimit-Interval-Milliseconds:10000\nX-HubSpot-RateLimit-Daily:5",
		"X-Shopify-Shop-Api-Call-Limit:32/40\nSforce-Limit-Info:api-usage=18/5000; x\nZendesk-RateLimit-x:total=100; remaining=99; resets=41\nX-Rate-Limit:7",
		"X-RateLimit-Limit:5\nX-RateLimit-Reset:1772366460000\nX-RateLimit-Reset-After:1.5\nX-RateLimit-Name:a",
	} {
		f.Add(429, lines, now.Unix())
	}
	f.Fuzz(func(t *testing.T, status int, lines string, at int64) {
		h, when := fuzzed(lines), time.Unix(at, 0)
		got := Read(status, h, when)
		if !reflect.DeepEqual(h, fuzzed(lines)) {
			t.Fatal("the header was changed")
		}
		if again := Read(status, fuzzed(lines), when); !reflect.DeepEqual(got, again) {
			t.Fatalf("got %+v, then %+v", got, again)
		}
		checkBounds(t, status, got)
	})
}

func checkBounds(t *testing.T, status int, a Hint) {
	t.Helper()
	switch {
	case a.Limited && (status < 400 || status > 599), !a.Limited && (status == 429 || a.RetryKnown), a.Limited && a.Status != status, !a.Limited && !a.Failed && a.Status != 0:
		t.Errorf("%d: Limited is %t", status, a.Limited)
	case !a.RetryKnown && a.Retry != 0, a.Retry < 0, a.Retry > MaxWait:
		t.Errorf("%d: Retry is %s, %t", status, a.Retry, a.RetryKnown)
	case a.RetryKnown && (status < 400 || status > 599):
		t.Errorf("%d: Retry is known", status)
	case len(a.Quotas) > MaxQuotas:
		t.Errorf("%d quotas", len(a.Quotas))
	}
	for i, q := range a.Quotas {
		switch {
		case q.Limit != Unknown && (q.Limit < 1 || q.Limit >= 1<<53),
			q.Remaining != Unknown && (q.Remaining < 0 || q.Remaining >= 1<<53),
			q.Limit == Unknown && q.Remaining == Unknown,
			q.Reset != Unknown && (q.Reset < 0 || q.Reset > MaxWait),
			q.Window < 0 || q.Window > 366*day:
			t.Errorf("%d: a number is out of bounds: %+v", i, q)
		case len(q.Name) > 64 || strings.ContainsFunc(q.Name, func(r rune) bool { return r < ' ' || r > '~' }):
			t.Errorf("%d: Name is %q", i, q.Name)
		}
		for _, word := range []string{q.Unit, q.Source} {
			if word == "" || len(word) > 64 || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
				t.Errorf("%d: a unit or source is %q", i, word)
			}
		}
	}
}

// plainAnswer has what an answer without any limit has.
func plainAnswer() http.Header {
	h := http.Header{}
	for _, name := range []string{
		"Date", "Content-Type", "Content-Length", "Connection", "Server", "Cache-Control", "Etag", "Vary", "Strict-Transport-Security",
		"X-Request-Id", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Access-Control-Allow-Origin", "Set-Cookie",
		"Content-Security-Policy", "X-Trace-Identifier", "Via", "Age", "Alt-Svc",
	} {
		h[name] = []string{"Sun, 01 Mar 2026 12:00:00 GMT"}
	}
	return h
}

// "An answer without any such field … allocates nothing"
func TestPlainAnswersAllocateNothing(t *testing.T) {
	h := plainAnswer()
	if got := testing.AllocsPerRun(100, func() { Read(200, h, now) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
