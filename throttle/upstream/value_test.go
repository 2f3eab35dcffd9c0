package upstream

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const none = -1
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for header, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, " \t 5 \t ": 5 * time.Second, "1.5": 1500 * time.Millisecond, "0.0000000001": time.Nanosecond,
		"1.00000000000": time.Second, "0.9999999999": time.Second, "0005": 5 * time.Second,
		"2678400": MaxWait, "2678399.9": MaxWait - time.Second/10, "2678400.1": MaxWait,
		"999999999": none, "99999999999": none, "9223372036854775807": none,
		// "a negative number and a date gone by mean now"
		"-5": 0, "-0.5": 0, at(-time.Second): 0,
		// not numbers
		"1e9": none, "+5": none, "--5": none, "-": none, ".5": none, "5.": none, "1.2.3": none, "0x10": none, "١٢": none, "5s": none,
		"5, 10": none, "": none, "NaN": none, "1_000": none, "5\u00a0": none,
		// "the longest of several values counts"
		"5\nRetry-After: 10": 10 * time.Second, "10\nRetry-After: soon\nRetry-After: 5": 10 * time.Second,
		// dates
		at(time.Minute): time.Minute, now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"): time.Minute,
		now.Add(time.Minute).Format(time.ANSIC): time.Minute, now.Add(time.Minute).Format(time.RFC3339): time.Minute,
		"2026-03-01T14:01:00+02:00": time.Minute, "Fri, 31 Dec 9999 23:59:59 GMT": none, "Sun, 31 Feb 2026 12:00:00 GMT": none,
		// a moment in seconds since 1970, 2026-03-01T12:01:00Z
		"1772366460": time.Minute, "1772366460.5": 60500 * time.Millisecond, "1000000000": 0, "4294967295": none, "1772366460000": time.Minute,
		// in milliseconds
		"soon\nRetry-After-Ms: 1500": 1500 * time.Millisecond, "soon\nRetry-After-Ms: 0.5": 500 * time.Microsecond,
		"soon\nRetry-After-Ms: -1": 0, "soon\nRetry-After-Ms: 99999999999999": none, "soon\nX-Ms-Retry-After-Ms: 1500": 1500 * time.Millisecond,
		"2\nX-Ms-Retry-After-Ms: 1501\nRetry-After-Ms: 1500":          1500 * time.Millisecond,
		"2\nX-Ms-Retry-After-Ms: 1501\nRetry-After-Ms: soon":          1501 * time.Millisecond,
		"2\nX-Ms-Retry-After-Ms:\nRetry-After-Ms: " + at(time.Minute): 2 * time.Second,
		// "a value longer than 1 KiB is not read"
		strings.Repeat("0", 1023) + "5": 5 * time.Second, strings.Repeat("0", 1024) + "5": none, strings.Repeat("9", 1<<20): none,
		strings.Repeat("5\nRetry-After: ", 8) + "6": 5 * time.Second,
	} {
		got := Read(429, answer(t, "Retry-After: "+header), now)
		if got.RetryKnown != (want != none) || got.Retry != max(want, 0) || !got.Limited || got.Quotas != nil {
			t.Errorf("%.80q: %+v, want %s", header, got, want)
		}
	}
	if got := Read(429, answer(t, "Retry-After-Ms: 1500"), now); got.Retry != 1500*time.Millisecond {
		t.Errorf("milliseconds alone: %+v", got)
	}
}

// The answer's Date is the clock, whatever the local one says.
func TestDate(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for i, row := range []struct {
		date string
		now  time.Time
		want time.Duration // until a minute past noon
	}{
		0: {at(0), now, time.Minute},
		1: {at(0), now.Add(time.Hour), time.Minute},
		2: {at(0), now.Add(-20 * 366 * day), time.Minute},
		3: {at(0), time.Time{}, time.Minute},
		4: {at(0), now.Add(250 * 366 * day), time.Minute},
		5: {at(45 * time.Second), now, 15 * time.Second},
		6: {at(time.Hour), now, 0},
		// a server without a clock has no say
		7:  {"Thu, 01 Jan 1970 00:00:05 GMT", now, time.Minute},
		8:  {"Sun, 09 Sep 2001 01:46:39 GMT", now, time.Minute},
		9:  {"Sun, 09 Sep 2001 01:46:40 GMT", now, 0}, // senseless: 24 years ahead
		10: {"Sat, 20 Nov 2286 17:46:39 GMT", now, 0},
		11: {"Sat, 20 Nov 2286 17:46:40 GMT", now, time.Minute},
		12: {"yesterday", now, time.Minute},
		13: {"", now.Add(10 * time.Second), 50 * time.Second},
	} {
		h := http.Header{"Retry-After": {at(time.Minute)}, "Date": {row.date}}
		if got := Read(503, h, row.now); got.Retry != row.want || !got.Limited {
			t.Errorf("%d: Date %q, now %s: %+v, want %s", i, row.date, row.now, got, row.want)
		}
	}
}

// A reset is a wait, a moment or a date; a number's size says which.
func TestReset(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		// seconds from now, up to MaxWait
		"0": 0, "60": time.Minute, "33011.38": 33011380 * time.Millisecond,
		"2678400": MaxWait, "2678400.5": MaxWait, "2678401": Unknown, "999999999": Unknown,
		// seconds since 1970
		"1000000000": 0, "1772366399": 0, "1772366400": 0, "1772366401": time.Second, "1772366400.123": 123 * time.Millisecond,
		"1775044799": MaxWait - time.Second, "1775044801": MaxWait,
		"1803988800": MaxWait, // a year of 366 days ahead
		"1803988801": Unknown, "9999999999": Unknown, "10000000000": Unknown, "999999999999": Unknown,
		// milliseconds since 1970
		"1000000000000": 0, "1772366400500": time.Second / 2, "1772366400500.5": 500500 * time.Microsecond,
		"9999999999999": Unknown, "10000000000000": Unknown, "1772366400000000": Unknown, "99999999999999999999": Unknown,
		// dates
		"Sun, 01 Mar 2026 12:01:00 GMT": time.Minute, "Sunday, 01-Mar-26 12:01:00 GMT": time.Minute,
		"2026-03-01T12:00:30Z": 30 * time.Second, "2026-03-01T12:00:00.25Z": 250 * time.Millisecond, "2026-03-01T11:00:00Z": 0,
		"2026-04-02T12:00:00Z": MaxWait, "9999-12-31T23:59:59Z": Unknown, "2026-03-01": Unknown,
		// durations
		"1s": time.Second, "6m0s": 6 * time.Minute, "120ms": 120 * time.Millisecond, "1d2h": 26 * time.Hour,
		"2m59.56s": 179560 * time.Millisecond, "0s": 0, "1.5h": 90 * time.Minute, "7us": 7 * time.Microsecond, "7µs": 7 * time.Microsecond, "9ns": 9,
		"0.5d": 12 * time.Hour, "31d": MaxWait, "32d": MaxWait, "366d": MaxWait, "367d": Unknown, "366d1ns": Unknown, "99999999999999999999h": Unknown,
		// nothing
		"": Unknown, "-1": Unknown, "-1s": Unknown, "+1s": Unknown, "s": Unknown, "1": time.Second, "1x": Unknown, "1 s": Unknown, "1s2": Unknown,
		"1e3": Unknown, "٣s": Unknown, "1..5s": Unknown, ".5s": Unknown, "1S": Unknown, "soon": Unknown, "null": Unknown, "60, 60": Unknown,
		strings.Repeat("1s", 512): 512 * time.Second, strings.Repeat("1s", 513): Unknown,
	} {
		got := Read(200, answer(t, "X-RateLimit-Limit: 1\nX-RateLimit-Reset: "+value), now).Quotas
		if len(got) != 1 || got[0] != quota("x-ratelimit", "", "requests", 1, Unknown, want, 0) {
			t.Errorf("%.40q: %+v, want %s", value, got, want)
		}
	}
}

// A plain number can be in milliseconds; what has a unit or is a moment, Retry-After and the draft stay as they are.
func TestResetUnit(t *testing.T) {
	t.Parallel()
	r := Reader{ResetUnit: time.Millisecond}
	for header, want := range map[string]time.Duration{
		"Gw-RateLimit-Limit: 500\nGw-RateLimit-Reset: 1489":            1489 * time.Millisecond,
		"X-RateLimit-Limit: 1\nX-RateLimit-Reset: 1.5":                 1500 * time.Microsecond,
		"X-RateLimit-Limit: 1\nX-RateLimit-Reset: 86400000":            24 * time.Hour,
		"X-RateLimit-Limit: 1\nX-RateLimit-Reset: 999999999":           999999999 * time.Millisecond,
		"X-RateLimit-Limit: 1\nX-RateLimit-Reset: 1772366430":          30 * time.Second,
		"X-RateLimit-Limit: 1\nX-RateLimit-Reset: 2s":                  2 * time.Second,
		"RateLimit-Policy: \"p\";q=10;w=60\nRateLimit: \"p\";r=0;t=30": 30 * time.Second,
	} {
		got := r.Read(429, answer(t, header+"\nRetry-After: 3"), now)
		if len(got.Quotas) != 1 || got.Quotas[0].Reset != want || got.Retry != 3*time.Second {
			t.Errorf("%q: %+v, want %s", header, got, want)
		}
	}
}

// Of several resets the one without a clock counts, and then the longest.
func TestResets(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"X-RateLimit-Reset: 1772366430\nX-RateLimit-Reset-After: 1.25":       1250 * time.Millisecond,
		"X-RateLimit-Reset: 1772366430\nX-RateLimit-Reset-After: 2s":         2 * time.Second,
		"X-RateLimit-Reset: 1772366430\nX-RateLimit-Reset-After: -1":         30 * time.Second,
		"X-RateLimit-Reset-After: 1772366430":                                30 * time.Second,
		"X-RateLimit-Reset: 1772366430\nX-RateLimit-Reset: 40":               40 * time.Second,
		"X-RateLimit-Reset: 40\nX-Rate-Limit-Reset: 1772366430":              40 * time.Second,
		"X-RateLimit-Reset: soon\nX-RateLimit-Reset: 20":                     20 * time.Second,
		"X-RateLimit-ResetTime: Sun, 01 Mar 2026 12:01:00 GMT":               time.Minute,
		"X-RateLimit-Reset: " + strings.Repeat(" ", 2000) + "20":             20 * time.Second,
		"X-RateLimit-Reset: " + strings.Repeat("0", 2000) + "20":             Unknown,
		strings.Repeat("X-RateLimit-Reset: 1\n", 8) + "X-RateLimit-Reset: 2": time.Second,
	} {
		got := Read(200, answer(t, "X-RateLimit-Limit: 1\n"+header), now).Quotas
		if len(got) != 1 || got[0].Reset != want {
			t.Errorf("%.80q: %+v, want %s", header, got, want)
		}
	}
}

// A number of units is whole, below 2^53, and told once or the same each time.
func TestCounts(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int64{
		"0": 0, "1": 1, "007": 7, "598.0": 598, "598.9": 598, "9007199254740991": 9007199254740991,
		"9007199254740992": Unknown, "99999999999999999999999": Unknown, "-1": Unknown, "-0": Unknown, "+1": Unknown,
		"": Unknown, "unlimited": Unknown, "1e3": Unknown, "0x10": Unknown, "1,000": Unknown, "5, 5": Unknown, "٣": Unknown, "5/10": Unknown,
		"5\nX-RateLimit-Remaining: 5": 5, "5\nX-RateLimit-Remaining: 6": Unknown, "5\nX-RateLimit-Remaining: -": 5,
		"5\nx-rate-limit-remaining: 5": 5, "5\nx-rate-limit-remaining: 6": Unknown,
		"5\nX-RateLimit-Used: 1": 5, "-1\nX-RateLimit-Used: 1": 9, "x\nX-RateLimit-Used: 11": 0, "x\nX-RateLimit-Used: -1": Unknown,
	} {
		got := Read(200, answer(t, "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: "+value), now).Quotas
		if len(got) != 1 || got[0] != quota("x-ratelimit", "", "requests", 10, want, Unknown, 0) {
			t.Errorf("remaining %q: %+v, want %d", value, got, want)
		}
	}
	for value, want := range map[string]int64{
		"1": 1, "9007199254740991": 9007199254740991, "9007199254740992": Unknown, "5, 5": 5, "5;x=y, 5": 5, "5.9": 5,
		"1,000": Unknown, "5, 6": Unknown, "5\nX-RateLimit-Limit: 5": 5, "5\nX-RateLimit-Limit: 6": Unknown, "unlimited": Unknown,
		"-1": Unknown, `"5"`: Unknown, `"a";q=5`: Unknown, "a=5": Unknown, "5 requests": Unknown, "": Unknown,
	} {
		got := Read(200, answer(t, "X-RateLimit-Remaining: 3\nX-RateLimit-Used: 2\nX-RateLimit-Limit: "+value), now).Quotas
		if len(got) != 1 || got[0] != quota("x-ratelimit", "", "requests", want, 3, Unknown, 0) {
			t.Errorf("limit %q: %+v, want %d", value, got, want)
		}
	}
	zendesk := quota("zendesk-ratelimit", "x", "requests", 9, 4, Unknown, 0)
	for _, value := range []string{"total=9; remaining=4", "remaining=4;total=9;resets=soon", "total=9; cost=5; remaining=4; remaining=x; more"} {
		if got := Read(200, answer(t, "Zendesk-RateLimit-X: "+value), now); !reflect.DeepEqual(got, told(zendesk)) {
			t.Errorf("%s: %+v", value, got)
		}
	}
	for value, want := range map[string]Quota{
		"1": {Limit: 1, Window: time.Second}, "2.5": {Limit: 1, Window: 400 * time.Millisecond}, "0.5": {Limit: 1, Window: 2 * time.Second},
		"1000000000": {Limit: 1e9, Window: time.Second}, "1000000000.5": {Limit: 1, Window: 1}, "0.3": {Limit: 1, Window: 3333333334},
		"0.000000032": {Limit: 1, Window: 31250000 * time.Second}, "0.000000031": {}, "0": {}, "0.0": {}, "-1": {}, "1000000001": {}, "fast": {}, "1\nx-amzn-ratelimit-limit: 1": {},
	} {
		var exp []Quota
		if want.Limit != 0 {
			exp = []Quota{rateOf(want.Limit, want.Window)}
		}
		if got := Read(200, answer(t, "x-amzn-RateLimit-Limit: "+value), now).Quotas; !reflect.DeepEqual(got, exp) {
			t.Errorf("%q a second: %+v", value, got)
		}
	}
	// "a limit of 0 is how APIs write that they have none"
	for _, header := range []string{
		"X-RateLimit-Limit: 0\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60",
		"X-RateLimit-Used: 5", "X-RateLimit-Reset: 60", "X-RateLimit-Limit: 0", "X-Shopify-Shop-Api-Call-Limit: 0/0",
		"X-Shopify-Shop-Api-Call-Limit: 32", "X-Shopify-Shop-Api-Call-Limit: /", "X-Shopify-Shop-Api-Call-Limit: a/40",
		"X-Shopify-Shop-Api-Call-Limit: 1/40\nX-Shopify-Shop-Api-Call-Limit: 1/80",
		"Zendesk-RateLimit-X: total=100", "Zendesk-RateLimit-X: remaining=100", "Zendesk-RateLimit-X: total=a; remaining=1",
		"Zendesk-RateLimit-X: total=0; remaining=0; resets=5",
	} {
		if got := Read(429, answer(t, header), now); got.Quotas != nil || got.RetryKnown {
			t.Errorf("%q: %+v", header, got)
		}
	}
}
