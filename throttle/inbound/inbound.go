// Package inbound puts an http.Handler under limits: each request asks the limiter first, and is passed on or answered 429.
//
//	handler := inbound.Wrap(mux, limiter, func(r *http.Request) string { return policy.JoinScope("api", callerOf(r)) })
//
// Requests never wait. Package roundtrip is for the other direction, requests that a program makes.
package inbound

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Limiter is the part of a *throttle.Limiter that a Middleware uses. A throttletest.Limiter has it too, for tests.
type Limiter interface {
	Decide(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	Lease(ctx context.Context, g throttle.Grant) (context.Context, *throttle.Lease)
}

// Middleware limits the requests that come to a handler. It is safe for concurrent use; do not change its fields once it is used.
//
// A request that the limiter allows is passed on, with the RateLimit fields of throttle.Decision.Header in the answer's header,
// which the handler may change. Other requests never reach the handler:
//
//   - A denied one is answered 429 (Too Many Requests), with the RateLimit fields and, if a clock ends the wait, Retry-After.
//   - While Redis does not answer, the rules' failure policies decide (Rule.OnRedisError). Under a closed rule the answer is 503
//     (Service Unavailable), with Retry-After: 1.
//   - One whose context has ended is answered 503.
//   - One that can never be allowed is the program's error: its scope is invalid or meets no rule, the application may not spend
//     from it, or it costs more than a rule can ever admit. It is answered 500 (Internal Server Error), and logged each time.
//
// Units stay spent, whatever the handler answers. Places under concurrency rules are held until the handler returns or panics. If
// they are lost meanwhile, the context of the request ends, with throttle.ErrLeaseLost as its cause.
//
// A request costs a round trip to Redis, shared with others that come at the same time, and one more under concurrency rules.
type Middleware struct {
	// Limiter decides. Required.
	Limiter Limiter
	// Scope returns the scope that a request spends from, such as api/acme. A request with an empty scope is not limited. Take
	// names from authenticated data, since each has limits of its own in Redis, and join them with policy.JoinScope: after
	// "api/"+name, a caller named acme/x spends from the limits of acme. Give callers without a name one. Required.
	Scope func(*http.Request) string
	// Cost returns how many units a request takes; 0 is 1. Defaults to 1 for each.
	Cost func(*http.Request) int64
	// Costs returns the cost by unit, instead of Cost. A request of 0 units is passed on, unless its scope is paused.
	Costs func(*http.Request) policy.Costs
	// PassUnmatched passes on requests whose scope meets no rule of a policy that denies such scopes. Defaults to false.
	PassUnmatched bool
	// LegacyHeader writes the fields of throttle.Decision.LegacyHeader too. Defaults to false.
	LegacyHeader bool
	// Answer writes the answer to a request that is not passed on. status is 429, 503 or 500, and the header has its fields
	// already. It must call WriteHeader(status); otherwise the status is 200. Defaults to the status's name as plain text.
	Answer func(w http.ResponseWriter, r *http.Request, status int)
	// Logger gets a line for each request that is answered 500. Defaults to slog.Default().
	Logger *slog.Logger
}

// Wrap limits a handler: each request takes one unit from the scope that scope returns for it.
func Wrap(next http.Handler, limiter Limiter, scope func(*http.Request) string) http.Handler {
	return (&Middleware{Limiter: limiter, Scope: scope}).Wrap(next)
}

// Wrap limits a handler. It has the form that routers take: router.Use(middleware.Wrap).
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

var errIncomplete = errors.New("inbound: Middleware needs a Limiter and a Scope")

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.Limiter == nil || m.Scope == nil {
		m.fail(w, r, "", errIncomplete)
		return
	}
	req := throttle.Request{Scope: m.Scope(r)}
	if req.Scope == "" {
		next.ServeHTTP(w, r)
		return
	}
	if m.Cost != nil {
		req.Cost = m.Cost(r)
	}
	if m.Costs != nil {
		req.Costs = m.Costs(r)
	}
	d, err := m.Limiter.Decide(r.Context(), req)
	if m.PassUnmatched && errors.As(err, new(*policy.UnmatchedError)) {
		next.ServeHTTP(w, r)
		return
	}
	if err != nil {
		m.fail(w, r, req.Scope, err)
		return
	}
	maps.Copy(w.Header(), d.Header())
	if m.LegacyHeader {
		maps.Copy(w.Header(), d.LegacyHeader())
	}
	if !d.Allowed {
		m.answer(w, r, http.StatusTooManyRequests)
		return
	}
	ctx, lease := m.Limiter.Lease(r.Context(), d.Grant)
	defer func() { _ = lease.Release(ctx) }() // if it fails, the limiter sends it again
	if ctx != r.Context() {
		r = r.WithContext(ctx)
	}
	next.ServeHTTP(w, r)
}

// fail answers a request that was not decided.
func (m *Middleware) fail(w http.ResponseWriter, r *http.Request, scope string, err error) {
	switch {
	case errors.Is(err, throttle.ErrUnavailable):
		w.Header().Set("Retry-After", "1")
		m.answer(w, r, http.StatusServiceUnavailable)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		m.answer(w, r, http.StatusServiceUnavailable)
	default:
		cmp.Or(m.Logger, slog.Default()).ErrorContext(r.Context(), "cannot limit a request", "scope", scope, "error", err)
		m.answer(w, r, http.StatusInternalServerError)
	}
}

func (m *Middleware) answer(w http.ResponseWriter, r *http.Request, status int) {
	if m.Answer != nil {
		m.Answer(w, r, status)
		return
	}
	http.Error(w, http.StatusText(status), status)
}
