package countapi

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// answer is how the API treats a call, by its query: ?latency=20ms&fail=503&retry_after=2. The zero answer is 200 at once.
type answer struct {
	latency    time.Duration // from a call's arrival to its answer
	fail       int           // the status of the first call of each task id; 0: none fails
	retryAfter int           // seconds, in the header of that name of a call that fails; 0: none
}

func answerOf(query string) (a answer, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return a, err
	}
	for name, v := range values {
		switch name {
		case "latency":
			a.latency, err = time.ParseDuration(v[0])
		case "fail":
			a.fail, err = strconv.Atoi(v[0])
			if err == nil && (a.fail < 200 || a.fail > 999) {
				err = errors.New("a status is a number from 200 to 999")
			}
		case "retry_after":
			a.retryAfter, err = strconv.Atoi(v[0])
		default:
			err = errors.New("use latency, fail or retry_after")
		}
		if err != nil {
			return a, fmt.Errorf("query %s=%s: %w", name, v[0], err)
		}
	}
	return a, nil
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
