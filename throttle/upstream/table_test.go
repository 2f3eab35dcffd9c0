package upstream

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// recorded returns an answer as it is on the wire.
func recorded(t *testing.T, text string) *http.Response {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n"+body)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestCases(t *testing.T) {
	t.Parallel()
	table := &Table{
		NameFields: []string{"X-Reason"}, NamePaths: []string{"error.details.quotaId"}, WaitPaths: []string{"error.details.retryDelay"},
		Reasons: map[string]string{"global-rate": ScopeTop, "core": ScopeTop},
		Cases: []Case{
			{Status: 403, Body: "Secondary Rate Limit", Wait: time.Minute},
			{Status: 200, JSON: "errors.type=RATE_LIMITED"},
			{Header: "X-Error: over quota", Scope: "payments/*", Burns: true, Counts: true},
			{Status: 429, JSON: "error.code=unpayable", Means: Failed},
			{Status: 500, JSON: "error.harmless", Means: Fine},
			{Status: 400, JSON: "error.message~Usage Limits"},
		},
	}
	for name, c := range map[string]struct {
		text string
		want Hint
	}{
		"a body":                 {"HTTP/1.1 403 Forbidden\n\nYou have exceeded a secondary rate limit.", Hint{Limited: true, Status: 403, Pause: time.Minute}},
		"another body":           {"HTTP/1.1 403 Forbidden\n\nYou may not.", Hint{}},
		"with Retry-After":       {"HTTP/1.1 403 Forbidden\nRetry-After: 9\n\nsecondary rate limit", Hint{Limited: true, Status: 403, Pause: time.Minute, Retry: 9 * time.Second, RetryKnown: true}},
		"a success":              {"HTTP/1.1 200 OK\nX-RateLimit-Limit: 9\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 7\n\n{\"errors\": [{\"type\": \"RATE_LIMITED\"}]}", Hint{Limited: true, Status: 200, Retry: 7 * time.Second, RetryKnown: true, Quotas: []Quota{quota("x-ratelimit", "", "requests", 9, 0, 7*time.Second, 0)}}},
		"data that looks alike":  {"HTTP/1.1 200 OK\n\n{\"data\": {\"errors\": [{\"type\": \"RATE_LIMITED\"}], \"type\": \"RATE_LIMITED\"}}", Hint{}},
		"a field":                {"HTTP/1.1 400 Bad Request\nX-Error: Over quota.\n\n", Hint{Limited: true, Status: 400, Where: "payments/*", Burns: true, Counts: true}},
		"no retry helps":         {"HTTP/1.1 429 Too Many Requests\nRetry-After: 3\n\n{\"error\": {\"code\": \"unpayable\"}}", Hint{Failed: true, Status: 429}},
		"a harmless fault":       {"HTTP/1.1 500 Oops\n\n{\"error\": {\"harmless\": true}}", Hint{}},
		"another fault":          {"HTTP/1.1 500 Oops\n\n{\"error\": {}}", Hint{Failed: true, Status: 500}},
		"names and a wait":       {"HTTP/1.1 429 Too Many Requests\n\n{\"error\": {\"details\": [{\"quotaId\": \"PerDay\"}, {\"quotaId\": \"PerMinute\"}, {\"retryDelay\": \"34.5s\"}]}}", Hint{Limited: true, Status: 429, Retry: 34500 * time.Millisecond, RetryKnown: true, Names: []string{"PerDay", "PerMinute"}}},
		"Retry-After goes first": {"HTTP/1.1 503 Busy\nRetry-After: 2\n\n{\"error\": {\"details\": [{\"retryDelay\": 34}]}}", Hint{Limited: true, Status: 503, Retry: 2 * time.Second, RetryKnown: true}},
		"a reason":               {"HTTP/1.1 429 Too Many Requests\nX-Reason: Global-Rate\n\n", Hint{Limited: true, Status: 429, Names: []string{"Global-Rate"}, Where: ScopeTop}},
		"a problem":              {"HTTP/1.1 503 Busy\nContent-Type: application/problem+json; charset=utf-8\n\n{\"type\": \"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\", \"violated-policies\": [\"burst\", \"day\"]}", Hint{Limited: true, Status: 503, Names: []string{"burst", "day"}}},
		"a reason of no refusal": {"HTTP/1.1 404 Not Found\nX-Reason: Global-Rate\n\n{\"error\": {\"details\": [{\"quotaId\": \"PerDay\"}]}}", Hint{}},
		"a quota as the reason":  {"HTTP/1.1 403 Forbidden\nX-RateLimit-Limit: 9\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 7\nX-RateLimit-Resource: core\n\n", Hint{Limited: true, Status: 403, Retry: 7 * time.Second, RetryKnown: true, Names: []string{"core"}, Where: ScopeTop, Quotas: []Quota{quota("x-ratelimit", "core", "requests", 9, 0, 7*time.Second, 0)}}},
		"a text in a value":      {"HTTP/1.1 400 Bad Request\n\n{\"error\": {\"message\": \"You have reached your usage limits.\"}}", Hint{Limited: true, Status: 400}},
		"the text elsewhere":     {"HTTP/1.1 400 Bad Request\n\n{\"message\": \"usage limits\", \"error\": {\"message\": \"usage\", \"code\": \"usage limits\"}}", Hint{}},
	} {
		if got := (Reader{Tables: []*Table{table}}).ReadResponse(recorded(t, c.text), now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
}

// "an earlier one takes precedence": of what a case means, of waits and of reasons.
func TestTablesBehindAnother(t *testing.T) {
	t.Parallel()
	own := &Table{
		WaitPaths: []string{"own"}, NamePaths: []string{"reason"}, Reasons: map[string]string{"burst": ScopeHere},
		Cases: []Case{{Status: 429, JSON: "error=dear", Means: Fine}},
	}
	vendors := &Table{
		WaitPaths: []string{"wait"}, Reasons: map[string]string{"burst": ScopeTop, "day": ScopeTop},
		Cases: []Case{{Status: 429, Wait: time.Minute}},
	}
	for body, want := range map[string]Hint{
		`{"error": "dear", "wait": 9}`: {},
		`{"own": 3, "wait": 9}`:        {Limited: true, Status: 429, Retry: 3 * time.Second, RetryKnown: true, Pause: time.Minute},
		`{"reason": "burst"}`:          {Limited: true, Status: 429, Names: []string{"burst"}, Where: ScopeHere, Pause: time.Minute},
		`{"reason": "day"}`:            {Limited: true, Status: 429, Names: []string{"day"}, Where: ScopeTop, Pause: time.Minute},
	} {
		got := Reader{Tables: []*Table{own, vendors}}.ReadResponse(recorded(t, "HTTP/1.1 429 Too Many Requests\n\n"+body), now)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", body, got, want)
		}
	}
}

// "looks at the first 4 KiB of the body, if a Table asks for that […], and leaves the body as it was"
func TestBodyIsHandedOn(t *testing.T) {
	t.Parallel()
	errBroken := errors.New("broken off")
	long := strings.Repeat("x", maxBody) + "secondary"
	for name, c := range map[string]struct {
		body    io.Reader
		text    string
		err     error
		limited bool
	}{
		"a short one":       {strings.NewReader("secondary"), "secondary", nil, true},
		"a long one":        {strings.NewReader("secondary" + long), "secondary" + long, nil, true},
		"beyond 4 KiB":      {strings.NewReader(long), long, nil, false},
		"byte by byte":      {iotest.OneByteReader(strings.NewReader("secondary")), "secondary", nil, true},
		"one that breaks":   {io.MultiReader(strings.NewReader("secondary"), iotest.ErrReader(errBroken)), "secondary", errBroken, true},
		"one that is cut":   {io.MultiReader(strings.NewReader("secondary"), iotest.ErrReader(io.ErrUnexpectedEOF)), "secondary", io.ErrUnexpectedEOF, true},
		"one that is empty": {strings.NewReader(""), "", nil, false},
	} {
		resp := &http.Response{StatusCode: 403, Header: http.Header{}, Body: io.NopCloser(c.body)}
		got := (Reader{Tables: []*Table{{Cases: []Case{{Status: 403, Body: "secondary"}}}}}).ReadResponse(resp, now)
		text, err := io.ReadAll(resp.Body)
		if got.Limited != c.limited || string(text) != c.text || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %d bytes, %v", name, got.Limited, len(text), err)
		}
	}
	untouched := &http.Response{StatusCode: 500, Header: http.Header{}, Body: io.NopCloser(iotest.ErrReader(errBroken))}
	before := untouched.Body
	Reader{Tables: []*Table{{Cases: []Case{{Status: 403, Body: "secondary"}}}}}.ReadResponse(untouched, now)
	if untouched.Body != before {
		t.Error("a body that no case asks for was read")
	}
}
