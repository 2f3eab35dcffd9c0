package outbound

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
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
	for _, limit := range []int{0, 20, 21, 46, 4096} {
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

// What an answer asks for is what package upstream reads of it, a day at most.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		status int
		header http.Header
		want   time.Duration
	}{
		{429, http.Header{}, -1},
		{429, http.Header{"Retry-After": {"120"}}, 2 * time.Minute},
		{429, http.Header{"Retry-After": {"86401"}}, 24 * time.Hour},
		{429, http.Header{"Retry-After-Ms": {"1500"}}, 1500 * time.Millisecond},
		{429, http.Header{"Retry-After": {"soon"}}, -1},
		{429, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, 30 * time.Second},
		{500, http.Header{"Retry-After": {now.Add(time.Minute).Format(http.TimeFormat)}}, time.Minute},
		{500, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, 30 * time.Second},
		{403, http.Header{"Retry-After": {"10"}}, 10 * time.Second},
		{403, http.Header{"X-Ratelimit-Remaining": {"4988"}}, -1},
		{503, http.Header{"Retry-After": {now.Add(time.Minute).Format(http.TimeFormat)}, "Date": {now.Add(30 * time.Second).Format(http.TimeFormat)}}, 30 * time.Second},
	} {
		if got, limited := retryAfter(&http.Response{StatusCode: tc.status, Header: tc.header}, now); got != tc.want || limited != (got >= 0 || tc.status == 429) {
			t.Errorf("%d with %v: %s, want %s", tc.status, tc.header, got, tc.want)
		}
	}
}

// Each answer is told, whatever its status, and what telling comes to changes nothing.
func TestAnswersAreTold(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Path", r.URL.Path)
		if r.URL.Path == "/429" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer s.Close()
	var told []string
	h := handler(t, Config{Told: func(_ context.Context, resp *http.Response) error {
		told = append(told, fmt.Sprint(resp.StatusCode, resp.Header.Get("X-Path"), resp.Request.URL.Host == s.Listener.Addr().String()))
		return errors.New("nobody hears it")
	}}, seams{})
	if err := run(t, h, payload{URL: s.URL + "/200"}); err != nil {
		t.Error(err)
	}
	var got *StatusError
	if err := run(t, h, payload{URL: s.URL + "/429"}); !errors.As(err, &got) {
		t.Error(err)
	}
	_ = run(t, h, payload{URL: "http://127.0.0.1:1/"})
	if want := []string{"200/200true", "429/429true"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
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
