package countapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Answer is how the API treats a call, which its query says:
// ?latency=20ms&status=201&fail=503&times=1&retry_after=2
// The zero value answers 200 at once.
type Answer struct {
	// Latency is the time between a call's arrival and its answer.
	// Defaults to 0.
	Latency time.Duration
	// Status is what is answered. Defaults to 200.
	Status int
	// Fail is what the first Times calls of each task id are answered instead.
	// Defaults to 503 where Times is set.
	Fail int
	// Times is how many calls of each task id fail before one gets Status.
	// Defaults to 0, or to 1 where Fail is set.
	Times int
	// RetryAfter is sent in the header of that name, in whole seconds rounded
	// up, with every answer that is no 2xx. Defaults to none.
	RetryAfter time.Duration
}

// answerOf returns what a query asks for.
func answerOf(query string) (a Answer, err error) {
	if query == "" {
		return a, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return a, err
	}
	for name, v := range values {
		switch name {
		case "latency":
			a.Latency, err = time.ParseDuration(v[0])
		case "status":
			a.Status, err = status(v[0])
		case "fail":
			a.Fail, err = status(v[0])
		case "times":
			a.Times, err = strconv.Atoi(v[0])
		case "retry_after":
			var s int
			s, err = strconv.Atoi(v[0])
			a.RetryAfter = time.Duration(s) * time.Second
		default:
			err = fmt.Errorf("use latency, status, fail, times or retry_after")
		}
		if err != nil {
			return a, fmt.Errorf("query %s=%s: %w", name, v[0], err)
		}
	}
	return a, nil
}

func status(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (n < 200 || n > 999) {
		err = fmt.Errorf("a status is a number from 200 to 999")
	}
	return n, err
}

// status returns what the n-th call of one id is answered, from 1.
func (a Answer) status(n int) int {
	times := a.Times
	if times == 0 && a.Fail != 0 {
		times = 1
	}
	switch {
	case n > times && a.Status == 0:
		return http.StatusOK
	case n > times:
		return a.Status
	case a.Fail == 0:
		return http.StatusServiceUnavailable
	}
	return a.Fail
}

// scopeOf returns the names below /v1/ joined by "/".
func scopeOf(u *url.URL) (string, error) {
	path, ok := strings.CutPrefix(u.EscapedPath(), "/v1/")
	if !ok || path == "" {
		return "", fmt.Errorf("path %q: write /v1/ and the scope, such as /v1/payments/acme/refunds", u.EscapedPath())
	}
	names := strings.Split(path, "/")
	for i, name := range names {
		plain, err := url.PathUnescape(name)
		if err != nil || plain == "" || strings.Contains(plain, "/") {
			return "", fmt.Errorf("path %q: %q is no name of a scope", u.EscapedPath(), name)
		}
		names[i] = plain
	}
	return strings.Join(names, "/"), nil
}

// Path returns the path at which the API counts calls of scope.
func Path(scope string) string {
	names := strings.Split(scope, "/")
	for i, name := range names {
		names[i] = url.PathEscape(name)
	}
	return "/v1/" + strings.Join(names, "/")
}
