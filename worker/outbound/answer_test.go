package outbound

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// 2xx is success; 408, 425, 429 and 5xx are retried; every other answer is final.
func TestStatuses(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.Header().Set("Location", "/200")
		w.WriteHeader(status)
	}))
	defer s.Close()
	h := handler(t, Config{}, seams{})
	for status := 200; status <= 599; status++ {
		err := run(t, h, payload{URL: fmt.Sprintf("%s/%d", s.URL, status)})
		if status < 300 {
			if err != nil {
				t.Errorf("%d: %v", status, err)
			}
			continue
		}
		var got *StatusError
		if !errors.As(err, &got) || got.Status != status || got.RetryAfter != -1 || got.Snippet != "" {
			t.Errorf("%d: %+v", status, got)
		}
		wantPermanent(t, err, status != 408 && status != 425 && status != 429 && status < 500)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	s := listen(t, always("HTTP/1.1 307 Temporary Redirect\r\nLocation: /there?token=hush\r\nContent-Length: 0\r\n\r\n"))
	err := run(t, handler(t, Config{}, seams{}), payload{URL: s.url + "/here"})
	wantPermanent(t, err, true)
	if want := "outbound: GET " + s.url + "/here answered 307 Temporary Redirect (redirects are not followed)"; err.Error() != want {
		t.Errorf("got %q", err)
	}
	if s.requests.Load() != 1 {
		t.Errorf("%d requests", s.requests.Load())
	}
}

func TestStatusErrorText(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "90")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("{\n\t\"error\": \"slow\x00\x00\xff down\u202e\"\r\n}\n" + strings.Repeat("é", 1000)))
	}))
	defer s.Close()
	for _, limit := range []int{0, 20, 21, 46, 5000} {
		err := run(t, handler(t, Config{Snippet: limit}, seams{}), payload{Method: "POST", URL: s.URL + "/charge"})
		var got *StatusError
		if !errors.As(err, &got) || got.RetryAfter != 90*time.Second {
			t.Fatalf("err = %v", err)
		}
		whole := "{ \"error\": \"slow\ufffd down\ufffd\" } " + strings.Repeat("é", 1000)
		if limit == 0 {
			limit = 256
		}
		if !strings.HasPrefix(whole, got.Snippet) || len(got.Snippet) > limit || len(got.Snippet) < min(limit-3, len(whole)) || !utf8.ValidString(got.Snippet) {
			t.Errorf("Snippet %d: %d bytes: %q", limit, len(got.Snippet), got.Snippet)
		}
		if want := "outbound: POST " + s.URL + "/charge answered 429 Too Many Requests (retry after 1m30s): " + got.Snippet; err.Error() != want {
			t.Errorf("got %q", err)
		}
	}
	if got := (&StatusError{Status: 599, RetryAfter: -1}).Error(); got != "outbound: answered 599" {
		t.Error(got)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, tc := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", -1},
		{"0", "", 0},
		{" 120 ", "", 2 * time.Minute},
		{"86400", "", 24 * time.Hour},
		{"86401", "", 24 * time.Hour},
		{"9223372036854775807", "", 24 * time.Hour},
		{"99999999999999999999999", "", 24 * time.Hour},
		{"-1", "", -1},
		{"+5", "", -1},
		{"1.5", "", -1},
		{"5s", "", -1},
		{"0x10", "", -1},
		{"soon", "", -1},
		{date(time.Minute), "", time.Minute},
		{date(0), "", 0},
		{date(-time.Second), "", -1},
		{date(time.Hour * 24 * 365), "", 24 * time.Hour},
		{now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"), "", time.Minute}, // RFC 850
		{now.Add(time.Minute).Format(time.ANSIC), "", time.Minute},
		{date(time.Minute), date(30 * time.Second), 30 * time.Second}, // the API's clock counts
		{date(time.Minute), date(time.Hour), -1},
		{date(time.Minute), "nonsense", time.Minute},
	} {
		h := http.Header{"Retry-After": {tc.value}, "Date": {tc.date}}
		if got := retryAfter(h, now); got != tc.want {
			t.Errorf("Retry-After %q, Date %q: %s, want %s", tc.value, tc.date, got, tc.want)
		}
	}
	if got := retryAfter(http.Header{}, now); got != -1 {
		t.Errorf("none: %s", got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\n b\x00\xff", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 0xfff
		got := clean(s, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\t\x00\x1b") || clean(got, limit) != got {
			t.Errorf("clean(%q, %d) = %q", s, limit, got)
		}
	})
}
