package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	// MaxWait is the longest wait of a request. A client that asks again under its attempt id, since its answer was lost, is not
	// charged again for half a minute.
	MaxWait = 20 * time.Second
	// MaxKeep is the longest time for which what was reserved can be settled or refunded, and the default.
	MaxKeep = 24 * time.Hour

	minKeep = time.Second
	maxID   = 128
)

// decision is the answer to decide, reserve and lease.
type decision struct {
	Allowed   bool   `json:"allowed"`
	ID        string `json:"id,omitzero"`
	WaitMS    int64  `json:"wait_ms,omitzero"`
	RetryMS   int64  `json:"retry_ms,omitzero"`
	Reason    string `json:"reason,omitzero"`
	Rule      string `json:"rule,omitzero"`
	RuleScope string `json:"rule_scope,omitzero"`
	Unit      string `json:"unit,omitzero"`
	Limit     *int64 `json:"limit,omitzero"`
	Remaining *int64 `json:"remaining,omitzero"`
	ResetMS   *int64 `json:"reset_ms,omitzero"`
	Member    string `json:"member,omitzero"`
	LeaseMS   int64  `json:"lease_ms,omitzero"`
	Degraded  bool   `json:"degraded,omitzero"`
}

// decide takes units, for good.
func (h *Handler) decide(ctx context.Context, r *request) (any, error) {
	a, err := read(r, func(a *ask) string { return a.Scope })
	if err != nil {
		return nil, err
	}
	d, err := h.ask(ctx, r, a)
	if err != nil {
		return nil, err
	}
	return r.decided(d, answerTo(d, a.ID))
}

// reserve takes units that can be settled or refunded.
func (h *Handler) reserve(ctx context.Context, r *request) (any, error) {
	a, err := read(r, func(a *askAndKeep) string { return a.Scope })
	if err != nil {
		return nil, err
	}
	d, err := h.askAndKeep(ctx, r, a, h.cfg.Limiter.SaveGrant)
	if err != nil {
		return nil, err
	}
	return r.decided(d, answerTo(d, a.ID))
}

// lease takes units, and holds places under concurrency rules for as long as they are renewed, or as its connection lasts.
func (h *Handler) lease(ctx context.Context, r *request) (any, error) {
	a, err := read(r, func(a *askLease) string { return a.Scope })
	if err != nil {
		return nil, err
	}
	save := h.cfg.Limiter.SaveLease
	if a.Connected {
		save = h.cfg.Limiter.SaveGrant
	}
	d, err := h.askAndKeep(ctx, r, &a.askAndKeep, save)
	if err != nil {
		return nil, err
	}
	answer := answerTo(d, a.ID)
	if !d.Allowed || !a.Connected {
		answer.LeaseMS = d.Grant.LeaseTime().Milliseconds()
		return r.decided(d, answer)
	}
	return nil, h.hold(ctx, r, d, answer)
}

// askAndKeep asks, and stores what was granted for any server to find. If this server dies between the two, the units stay charged until their
// window ends, unless its client asks again under its id: the grant is then the same, and is stored.
func (h *Handler) askAndKeep(ctx context.Context, r *request, a *askAndKeep, save func(context.Context, throttle.Grant, string, time.Duration) error) (throttle.Decision, error) {
	keep := cmp.Or(time.Duration(a.Keep), MaxKeep)
	if keep < minKeep || keep > MaxKeep {
		return throttle.Decision{}, &fault{http.StatusBadRequest, "keep is " + duration.Format(keep) + "; it is 1s to 24h", forms["keep"]}
	}
	fresh := a.ID == ""
	if fresh {
		a.ID = throttle.NewID()
	}
	d, err := h.ask(ctx, r, &a.ask)
	if err != nil || !d.Allowed {
		return d, err
	}
	if err = save(context.WithoutCancel(ctx), d.Grant, r.own(a.ID), keep); err != nil && fresh { // else its client asks again under its id
		_ = h.cfg.Limiter.Refund(ctx, d.Grant) // if it fails, the units come back by the clock
	}
	return d, err
}

// ask has the limiter decide, at once or at the start. A request with an id goes on when its client has gone, which may ask again
// under the id: another server may have told it of the same grant.
func (h *Handler) ask(ctx context.Context, r *request, a *ask) (throttle.Decision, error) {
	req := throttle.Request{Scope: a.Scope, Cost: a.Cost.each, Costs: a.Cost.units, ID: r.own(a.ID)}
	wait := time.Duration(a.Wait)
	switch {
	case len(a.ID) > maxID:
		return throttle.Decision{}, &fault{http.StatusBadRequest, fmt.Sprintf("the id is %d bytes long; the most is %d", len(a.ID), maxID), forms["id"]}
	case wait > MaxWait:
		return throttle.Decision{}, &fault{http.StatusBadRequest, "wait is " + duration.Format(wait) + "; the most is " + duration.Format(MaxWait), `"wait": "20s", and again after retry_ms`}
	}
	if a.ID != "" {
		ctx = context.WithoutCancel(ctx)
	}
	if wait == 0 || a.AtOnce {
		req.MaxDelay = wait
		return h.cfg.Limiter.Decide(ctx, req)
	}
	return h.wait(ctx, req, wait)
}

// wait asks for a start of its own within a time, and returns at that start.
func (h *Handler) wait(ctx context.Context, req throttle.Request, wait time.Duration) (throttle.Decision, error) {
	leave, err := h.enter()
	if err != nil {
		return throttle.Decision{}, err
	}
	defer leave()
	req.MaxDelay = wait
	until, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	d, err := h.cfg.Limiter.Wait(until, req)
	d.Wait = 0 // it is over
	switch {
	case err == nil || errors.Is(err, throttle.ErrUnavailable) || ctx.Err() != nil:
		return d, err
	case errors.Is(err, throttle.ErrMaxWait) && d.RetryAfter > 0:
		return d, nil // a denial
	case errors.Is(err, throttle.ErrMaxWait), errors.Is(err, context.DeadlineExceeded): // no place came free
		req.MaxDelay = 0
		return h.cfg.Limiter.Decide(ctx, req)
	}
	return d, err
}

// enter counts a request that takes long.
func (h *Handler) enter() (leave func(), err error) {
	if h.waiting.Add(1) > int64(h.cfg.MaxWaiting) {
		h.waiting.Add(-1)
		return nil, &fault{http.StatusServiceUnavailable, "too many requests wait at this server", `"at_once": true, or again in a second`}
	}
	return func() { h.waiting.Add(-1) }, nil
}

// decided writes a decision: 429 for a denial.
func (r *request) decided(d throttle.Decision, answer *decision) (any, error) {
	d.SetHeader(r.w.Header())
	if d.Allowed {
		return answer, nil
	}
	write(r.w, http.StatusTooManyRequests, answer)
	return nil, nil
}

func answerTo(d throttle.Decision, id string) *decision {
	a := &decision{Allowed: d.Allowed, WaitMS: ms(d.Wait), Member: d.Member, Degraded: d.Degraded}
	if d.Allowed {
		a.ID = id
	} else {
		a.Reason = reasonOf(d)
		if d.RetryAfter != throttle.Never {
			a.RetryMS = max(1, ms(d.RetryAfter))
		}
	}
	if by, is := d.BindingRule(); is {
		a.Rule, a.RuleScope, a.Unit, a.Limit, a.Remaining = by.Rule, by.Scope, by.Unit, &by.Limit, &by.Remaining
		if by.ResetAfter != throttle.Never {
			reset := ms(by.ResetAfter)
			a.ResetMS = &reset
		}
	}
	return a
}

// reasonOf returns what a denied request waits for, in the words of docs/json.md#reasons.
func reasonOf(d throttle.Decision) string {
	by, is := d.BindingRule()
	switch {
	case !is:
		return "upstream"
	case by.Paused:
		return "paused"
	case by.Algorithm == policy.Concurrency:
		return "run"
	case by.Limit == 0:
		return "suspended"
	}
	return "rule"
}

// ms rounds up, so that no client comes too early.
func ms(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
