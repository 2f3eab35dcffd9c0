package inbound_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/inbound"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// limiterOf is a limiter of a scope api with rules, and of all below it.
func limiterOf(t *testing.T, rules string) *throttle.Limiter {
	t.Helper()
	return throttletest.New(t, limitsOf(t, rules), throttle.Config{StartTolerance: -1})
}

func limitsOf(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	return throttletest.Policy(t, "limits: {api: {rules: ["+rules+`], scopes: {"*": {}}}}`)
}

// byPath is the scope that a request's path names.
func byPath(r *http.Request) string { return strings.Trim(r.URL.Path, "/") }

// serve has a handler answer one request.
func serve(t *testing.T, h http.Handler, path string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Result() //nolint:bodyclose // of a recorder
}

// ok is a handler that is passed requests.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// fields are those of a header that tell of limits.
func fields(h http.Header) http.Header {
	told := http.Header{}
	for name, values := range h {
		if strings.Contains(strings.ToLower(name), "ratelimit") || name == "Retry-After" {
			told[name] = values
		}
	}
	return told
}

// "One that is denied is answered 429, with the RateLimit fields and, where a clock tells when it would be allowed,
// Retry-After"; "a request that the limiter allows is passed on, with the RateLimit fields".
func TestMiddleware(t *testing.T) {
	t.Parallel()
	const policies = `"api:hourly";q=5;w=3600`
	left := func(remaining string, more ...string) http.Header {
		h := http.Header{"Ratelimit": {`"api:hourly";r=` + remaining + `;t=3600`}, "Ratelimit-Policy": {policies}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	legacy := func(remaining string, more ...string) http.Header {
		return left(remaining, append(more, "X-Ratelimit-Limit", "5", "X-Ratelimit-Remaining", remaining, "X-Ratelimit-Reset", "3600")...)
	}
	type answer struct {
		path   string
		status int
		fields http.Header
	}
	const hourly = `{name: hourly, algorithm: sliding-window, limit: 5, per: 1h}`
	for name, row := range map[string]struct {
		rules  string
		change func(*inbound.Middleware)
		want   []answer
	}{
		"one unit each": {hourly, func(*inbound.Middleware) {}, []answer{
			{"/api/a", 204, left("4")}, {"/api", 204, left("3")}, {"/", 204, http.Header{}}, {"/api/b", 204, left("2")},
		}},
		"costs": {hourly, func(m *inbound.Middleware) { m.Cost = func(*http.Request) int64 { return 2 } }, []answer{
			{"/api/a", 204, left("3")}, {"/api/a", 204, left("1")}, {"/api/a", 429, left("1", "Retry-After", "3600")},
		}},
		"costs by unit": {hourly, func(m *inbound.Middleware) {
			m.Costs = func(r *http.Request) policy.Costs {
				return policy.Costs{policy.Requests: int64(len(r.URL.Path) - len("/api/"))}
			}
		}, []answer{
			{"/api/1234", 204, left("1")}, {"/api/12", 429, left("1", "Retry-After", "3600")}, {"/api/", 204, left("1")}, // it costs nothing
		}},
		"the older fields": {hourly, func(m *inbound.Middleware) {
			m.LegacyHeader, m.Cost = true, func(*http.Request) int64 { return 5 }
		}, []answer{
			{"/api/a", 204, legacy("0")}, {"/api/a", 429, legacy("0", "Retry-After", "3600")}, {"/", 204, http.Header{}},
		}},
		"suspended, and no clock tells until when": {`{name: off, algorithm: sliding-window, limit: 0, per: 1h}`, func(*inbound.Middleware) {}, []answer{
			{"/api", 429, http.Header{"Ratelimit": {`"api:off";r=0;t=0`}, "Ratelimit-Policy": {`"api:off";q=0`}}},
		}},
	} {
		m := &inbound.Middleware{Limiter: limiterOf(t, row.rules), Scope: byPath}
		row.change(m)
		h := m.Wrap(ok)
		for i, want := range row.want {
			got := serve(t, h, want.path)
			if got.StatusCode != want.status || !reflect.DeepEqual(fields(got.Header), want.fields) {
				t.Errorf("%s, request %d: %d %q, want %d %q", name, i, got.StatusCode, fields(got.Header), want.status, want.fields)
			}
		}
	}
}

// Callers whose names are joined as Scope says have limits of their own, whatever the names hold: none spends another's.
func TestCallersAreApart(t *testing.T) {
	t.Parallel()
	limits := throttletest.Policy(t, `limits: {api: {scopes: {"*": {rules: [{name: caller, algorithm: fixed-window, limit: 1, per: 30d}]}}}}`)
	l, caller := throttletest.New(t, limits), ""
	h := inbound.Wrap(ok, l, func(*http.Request) string { return policy.JoinScope("api", cmp.Or(caller, "unknown")) })
	long := strings.Repeat("a", 500)
	names := []string{"anna/x", "anna", "anna/", "/anna", "anna%2Fx", "anna ", "Anna", "*", "..", "../anna", "anna//", "an\x00na", "an\xffna", "", long, long + "b", "\n"}
	for _, want := range []int{http.StatusNoContent, http.StatusTooManyRequests} {
		for _, caller = range names {
			if code := serve(t, h, "/").StatusCode; code != want {
				t.Errorf("%.20q gets %d, want %d", caller, code, want)
			}
		}
	}
}

// "Places under concurrency rules are held until the handler returns or panics."
func TestMiddlewareHoldsPlaces(t *testing.T) {
	t.Parallel()
	l := limiterOf(t, `{name: runs, algorithm: concurrency, limit: 1}`)
	var h http.Handler
	inner := 0
	h = inbound.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			t.Error("the context of a request that runs has ended")
		}
		switch r.URL.Query().Get("do") {
		case "panic":
			panic(http.ErrAbortHandler)
		case "more": // while this one runs
			inner = serve(t, h, "/api").StatusCode
		}
		w.WriteHeader(http.StatusNoContent)
	}), l, byPath)
	if got := serve(t, h, "/api?do=more"); got.StatusCode != 204 || inner != 429 {
		t.Errorf("%d, and %d while it ran", got.StatusCode, inner)
	}
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // what was panicked with
				t.Errorf("it panicked with %v", p)
			}
		}()
		serve(t, h, "/api?do=panic")
	}()
	if got := serve(t, h, "/api"); got.StatusCode != 204 {
		t.Errorf("after a panic: %d", got.StatusCode)
	}
}

// "If they are lost meanwhile, the context of the request ends, with throttle.ErrLeaseLost as its cause."
func TestMiddlewareLosesPlaces(t *testing.T) {
	t.Parallel()
	var l throttletest.Limiter
	h := inbound.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		l.LoseLeases()
		if !errors.Is(context.Cause(r.Context()), throttle.ErrLeaseLost) {
			t.Errorf("the context has ended by %v", context.Cause(r.Context()))
		}
	}), &l, byPath)
	if got := serve(t, h, "/api"); got.StatusCode != http.StatusOK {
		t.Errorf("%d", got.StatusCode)
	}
}

// "While Redis cannot answer, the rules' failure policies decide."
func TestMiddlewareInAnOutage(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]struct {
		status int
		fields http.Header
	}{
		"closed": {503, http.Header{"Retry-After": {"1"}}},
		"open":   {204, http.Header{"Ratelimit": {`"api:r";r=5;t=0`}, "Ratelimit-Policy": {`"api:r";q=5;w=3600`}}},
		"share":  {503, http.Header{"Retry-After": {"1"}}}, // nobody has told how many processes there are
	} {
		l, server := throttletest.NewWithRedis(t, limitsOf(t, "{name: r, algorithm: sliding-window, limit: 5, per: 1h, on_redis_error: "+policy+"}"))
		var log bytes.Buffer
		h := (&inbound.Middleware{Limiter: l, Scope: byPath, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Wrap(ok)
		server.SetError("LOADING Redis is loading the dataset in memory")
		got := serve(t, h, "/api")
		if got.StatusCode != want.status || !reflect.DeepEqual(fields(got.Header), want.fields) || log.Len() > 0 {
			t.Errorf("%s: %d %q, logged %q", policy, got.StatusCode, fields(got.Header), log.String())
		}
		server.SetError("")
		if got := serve(t, h, "/api"); got.StatusCode != 204 {
			t.Errorf("%s, afterwards: %d", policy, got.StatusCode)
		}
	}
}

// "One that can never be allowed is the program's error"; "One whose context has ended is answered 503", and not logged; PassUnmatched
// "passes on requests whose scope meets no rule".
func TestMiddlewareErrors(t *testing.T) {
	t.Parallel()
	l := throttletest.New(t, limitsOf(t, "{name: r, algorithm: sliding-window, limit: 5, per: 1h}"))
	cost := func(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }
	for name, row := range map[string]struct {
		m      inbound.Middleware
		path   string
		status int
		logged string // what it says
	}{
		"no rule":               {inbound.Middleware{Limiter: l, Scope: byPath}, "/other/x", 500, `scope=other/x error="throttle: scope \"other/x\" meets no rule`},
		"no rule, passed":       {inbound.Middleware{Limiter: l, Scope: byPath, PassUnmatched: true}, "/other/x", 204, ""},
		"no scope":              {inbound.Middleware{Limiter: l, Scope: byPath}, "/api//x", 500, `name 2 is empty`},
		"too much":              {inbound.Middleware{Limiter: l, Scope: byPath, Cost: cost(6), PassUnmatched: true}, "/api/x", 500, `cost 6 can never pass`},
		"less than nothing":     {inbound.Middleware{Limiter: l, Scope: byPath, Cost: cost(-1)}, "/api/x", 500, `cost is -1`},
		"no limiter":            {inbound.Middleware{Scope: byPath}, "/api/x", 500, `Middleware needs a Limiter and a Scope`},
		"no scopes":             {inbound.Middleware{Limiter: l}, "/api/x", 500, `Middleware needs a Limiter and a Scope`},
		"its context has ended": {inbound.Middleware{Limiter: throttletest.Script(throttletest.Fail(context.Canceled)), Scope: byPath}, "/api", 503, ""},
		"not this application": {
			inbound.Middleware{Limiter: throttletest.Script(throttletest.Fail(&policy.AppError{})), Scope: byPath, PassUnmatched: true}, "/api/x", 500, `application`,
		},
	} {
		var log bytes.Buffer
		row.m.Logger = slog.New(slog.NewTextHandler(&log, nil))
		got := serve(t, row.m.Wrap(ok), row.path)
		if got.StatusCode != row.status || len(fields(got.Header)) > 0 {
			t.Errorf("%s: %d %q", name, got.StatusCode, fields(got.Header))
		}
		if lines := strings.Count(log.String(), "\n"); (row.logged != "") != (lines == 1) || !strings.Contains(log.String(), row.logged) ||
			lines == 1 && !strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("%s: logged %q, want %q", name, log.String(), row.logged)
		}
	}
}

// Answer "writes the answer to a request that is not passed on"; by default it is "the status's name as plain text".
func TestMiddlewareAnswers(t *testing.T) {
	t.Parallel()
	for status, answer := range map[int]throttletest.Answer{
		429: throttletest.Deny(1500 * time.Millisecond), 503: throttletest.Fail(throttle.ErrUnavailable), 500: throttletest.Fail(&policy.UnmatchedError{}),
	} {
		custom := func(w http.ResponseWriter, r *http.Request, status int) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"path":%q,"again":%q}`, r.URL.Path, w.Header().Get("Retry-After"))
		}
		want := fmt.Sprintf(`{"path":"/api","again":%q}`, map[int]string{429: "2", 503: "1", 500: ""}[status])
		for text, by := range map[string]func(http.ResponseWriter, *http.Request, int){http.StatusText(status) + "\n": nil, want: custom} {
			m := &inbound.Middleware{Limiter: throttletest.Script(answer), Scope: byPath, Logger: slog.New(slog.DiscardHandler), Answer: by}
			w := httptest.NewRecorder()
			m.Wrap(ok).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api", nil))
			if w.Code != status || w.Body.String() != text {
				t.Errorf("%d: %d %q, want %q", status, w.Code, w.Body, text)
			}
		}
	}
}
