// Package roundtrip puts an http.Client under limits: each request asks the limiter first, and waits for its start or is refused.
//
//	client := roundtrip.Wrap(http.DefaultClient, limiter, "payments/acme")
//
// It is for code outside of asynq, and for handlers that make many calls in one task: package worker limits whole tasks.
package roundtrip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// Transport is an http.RoundTripper that spends from a scope for each request. It is safe for concurrent use. Redirects that a
// client follows are separate requests. Requests that Base repeats after a broken connection are not counted; a Base with
// DisableKeepAlives repeats none.
type Transport struct {
	// Limiter decides. Required.
	Limiter *throttle.Limiter
	// Scope returns the scope that a request spends from; a request with an empty scope is not limited. Required.
	Scope func(*http.Request) string
	// Cost returns how many units a request takes; 0 is 1. Defaults to 1 for each.
	Cost func(*http.Request) int64
	// Costs returns the cost by unit, instead of Cost. A request of 0 units is sent at once, unless its scope is paused.
	Costs func(*http.Request) policy.Costs
	// Settle returns what a request has spent, according to its answer's header or body, which has what the caller has read: at
	// most the last MiB. The amounts replace the charge, as by throttle.Limiter.Settle; if Settle returns false, the charge stays.
	// It is called once for each answer, in the goroutine that reads the body to its end, or closes it before. It is never called
	// for a body that is not closed, nor for an upgraded connection. The body's Close returns an error of settling; Read never
	// does. Defaults to what the answer's dialect in limits.yaml says: those of language models settle as llm.Costs, whatever the length of the body.
	Settle func(*http.Response) (policy.Costs, bool)
	// Prices add what calls of language models have cost, in USD, if Settle is nil. Defaults to none.
	Prices *llm.Prices
	// Settled receives the result of settling a request, after Settle and in the same goroutine, unless that failed.
	Settled func(*http.Request, throttle.Settlement)
	// Refuse makes a limited request fail at once, with a *LimitedError. Defaults to false: it waits for its start, for as long as
	// its context and the rules' max_wait allow.
	Refuse bool
	// IgnoreAnswers turns off the reporting of answers. By default, what an answer says about the API's own limits applies to all
	// requests of the scope, in every process: see throttle.Limiter.Report. Calls that fail open the scope's breaker: see
	// throttle.Limiter.ReportCall. A request whose context was canceled counts as none. Defaults to false.
	IgnoreAnswers bool
	// Sign puts the key of a pool's member into a request, a copy of the caller's, as it is sent: member is the alias of the member
	// that it was granted, "" without a pool. It must be quick. Defaults to nothing, for scopes without a pool.
	Sign func(r *http.Request, member string)
	// Base sends the requests. Defaults to http.DefaultTransport.
	Base http.RoundTripper
}

// Wrap returns a client like c whose requests each spend one unit from a scope, and wait for it.
func Wrap(c *http.Client, limiter *throttle.Limiter, scope string) *http.Client {
	wrapped := *c
	wrapped.Transport = &Transport{Limiter: limiter, Scope: func(*http.Request) string { return scope }, Base: c.Transport}
	return &wrapped
}

// LimitedError is the error for a request that was not sent because a limit refuses it now.
type LimitedError struct {
	Scope string
	// Rule is the rule with the longest wait, or "" if the API asked for the wait or a breaker is open. RetryAfter is that wait; throttle.Never if no
	// clock ends it.
	Rule       string
	RetryAfter time.Duration
}

func (e *LimitedError) Error() string {
	switch {
	case e.Rule == policy.PausedRule:
		return fmt.Sprintf("roundtrip: %s is paused", e.Scope)
	case e.Rule == "":
		return fmt.Sprintf("roundtrip: the API of %s is not called for another %s", e.Scope, e.RetryAfter)
	case e.RetryAfter == throttle.Never:
		return fmt.Sprintf("roundtrip: rule %s limits %s until it is changed or a run ends", e.Rule, e.Scope)
	}
	return fmt.Sprintf("roundtrip: rule %s limits %s for another %s", e.Rule, e.Scope, e.RetryAfter)
}

var errIncomplete = errors.New("roundtrip: Transport needs a Limiter and a Scope")

// RoundTrip sends the request once every rule of its scope admits it. Places under concurrency rules are held until the answer's
// body is closed. The error is a *LimitedError, one of throttle.Limiter.Wait or Decide, or Base's; the request was sent only in
// the last case. Costs one round trip to Redis, two with concurrency rules, and one more for an answer with new information. Of
// breakers it costs what throttle.Limiter.ReportCall does.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Limiter == nil || t.Scope == nil {
		return nil, errors.Join(errIncomplete, closeBody(r))
	}
	scope := t.Scope(r)
	if scope == "" {
		return t.base().RoundTrip(r)
	}
	d, err := t.admit(r, scope)
	if err != nil {
		return nil, errors.Join(err, closeBody(r))
	}
	ctx, lease := t.Limiter.Lease(r.Context(), d.Grant)
	sent := t.signed(ctx, r, d.Member)
	began := time.Now()
	resp, err := t.base().RoundTrip(sent)
	if err != nil {
		if cause := context.Cause(ctx); cause == nil || errors.Is(cause, context.DeadlineExceeded) { // else the caller has given up
			t.ended(r, scope, d.Grant, upstream.Hint{Failed: true})
		}
		return nil, errors.Join(err, lease.Release(r.Context()))
	}
	resp.Request = r
	usage := false
	if !t.IgnoreAnswers {
		// The caller gets the answer, even if it cannot be reported to Redis.
		about := d.Grant.AnswerScope()
		advice := t.Limiter.ReadResponse(about, resp, time.Now())
		advice.Sent = began
		_, _ = t.Limiter.Report(r.Context(), about, advice)
		t.ended(r, scope, d.Grant, advice)
		if t.Settle == nil && len(advice.Costs) > 0 {
			_, _ = t.Limiter.Settle(r.Context(), d.Grant, advice.Costs)
		}
		usage = advice.Usage
	}
	resp.Body = t.held(r, resp, d.Grant, usage, func() error { return lease.Release(context.WithoutCancel(ctx)) })
	return resp, nil
}

// ended reports how a call has ended, for the breakers of its scope.
func (t *Transport) ended(r *http.Request, scope string, g throttle.Grant, hint upstream.Hint) {
	pol := t.Limiter.Policy()
	if t.IgnoreAnswers || !pol.Breaks() {
		return
	}
	if s, err := policy.ParseScope(scope); err == nil && pol.Hears(s, hint.Host) {
		_, _ = t.Limiter.ReportCall(r.Context(), g, hint.Failed)
	}
}

// signed returns the request as it is sent.
func (t *Transport) signed(ctx context.Context, r *http.Request, member string) *http.Request {
	switch {
	case t.Sign != nil:
		r = r.Clone(ctx)
		t.Sign(r, member)
	case ctx != r.Context():
		r = r.WithContext(ctx)
	}
	return r
}

// held returns the body of an answer, whose end settles its request and whose Close frees its places.
func (t *Transport) held(r *http.Request, resp *http.Response, g throttle.Grant, usage bool, done func() error) io.ReadCloser {
	b := &body{ReadCloser: resp.Body, done: done}
	if conn, upgraded := resp.Body.(io.Writer); upgraded { // 101: the body is the connection
		return struct {
			*body
			io.Writer
		}{b, conn}
	}
	settle := func(costs policy.Costs) error {
		s, err := t.Limiter.Settle(r.Context(), g, costs)
		if err == nil && t.Settled != nil {
			t.Settled(r, s)
		}
		return err
	}
	switch {
	case t.Settle != nil:
		b.ReadCloser = newMetered(resp, t.Settle, settle)
	case usage:
		t.Prices.Watch(resp, func(costs policy.Costs) error {
			if costs == nil { // the answer does not say
				return nil
			}
			return settle(costs)
		})
		b.ReadCloser = resp.Body
	}
	return b
}

func (t *Transport) base() http.RoundTripper { return cmp.Or(t.Base, http.DefaultTransport) }

// admit takes the request's cost, and waits for its start unless t refuses.
func (t *Transport) admit(r *http.Request, scope string) (throttle.Decision, error) {
	req := throttle.Request{Scope: scope}
	if t.Cost != nil {
		req.Cost = t.Cost(r)
	}
	if t.Costs != nil {
		req.Costs = t.Costs(r)
	}
	if !t.Refuse {
		return t.Limiter.Wait(r.Context(), req)
	}
	d, err := t.Limiter.Decide(r.Context(), req)
	if err == nil && !d.Allowed {
		rule, _ := d.BindingRule()
		err = &LimitedError{Scope: scope, Rule: rule.Rule, RetryAfter: d.RetryAfter}
	}
	return d, err
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(r *http.Request) error {
	if r.Body == nil {
		return nil
	}
	return r.Body.Close()
}

// body is an answer's body. Its request holds places until it is closed.
type body struct {
	io.ReadCloser
	once sync.Once
	done func() error
}

// Close closes the body and gives the places back.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { err = errors.Join(err, b.done()) })
	return err
}
