package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/headway-go/headway/throttle"
)

// settled is the answer to settle.
type settled struct {
	Rules []settledRule `json:"rules"`
}

type settledRule struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Unit      string `json:"unit"`
	Spent     int64  `json:"spent"`
	Back      int64  `json:"back,omitzero"`
	Debt      int64  `json:"debt,omitzero"`
	Over      int64  `json:"over,omitzero"`
}

// done is the answer to refund, renew and release.
type done struct {
	ID      string `json:"id"`
	LeaseMS int64  `json:"lease_ms,omitzero"`
}

// settle corrects what was reserved or leased to what was spent.
func (h *Handler) settle(ctx context.Context, r *request) (any, error) {
	b, err := read(r, func(b *settlement) string { return b.Scope })
	if err != nil {
		return nil, err
	}
	if len(b.Cost) == 0 {
		return nil, &fault{http.StatusBadRequest, "the field cost is missing", formOfSpent}
	}
	if err := b.Cost.CheckUnits(); err != nil {
		return nil, err
	}
	g, err := h.load(ctx, r, b.ref)
	if err != nil {
		return nil, err
	}
	s, err := h.cfg.Limiter.Settle(ctx, g, b.Cost)
	if err != nil {
		return nil, err
	}
	out := settled{Rules: make([]settledRule, len(s.Rules))}
	for i, by := range s.Rules {
		out.Rules[i] = settledRule{by.Rule, by.Scope, by.Unit, by.Spent, by.Back, by.Debt, by.Over}
	}
	return out, nil
}

// refund gives back what was reserved or leased.
func (h *Handler) refund(ctx context.Context, r *request) (any, error) {
	return h.with(ctx, r, h.cfg.Limiter.Refund)
}

// release frees the places of a lease.
func (h *Handler) release(ctx context.Context, r *request) (any, error) {
	return h.with(ctx, r, h.cfg.Limiter.Release)
}

// renew is the heartbeat of a lease.
func (h *Handler) renew(ctx context.Context, r *request) (any, error) {
	var lease time.Duration
	answer, err := h.with(ctx, r, func(ctx context.Context, g throttle.Grant) error {
		lease = g.LeaseTime()
		return h.cfg.Limiter.Renew(ctx, g)
	})
	if err != nil {
		return nil, err
	}
	return done{answer.ID, lease.Milliseconds()}, nil
}

// with does something with what was reserved or leased.
func (h *Handler) with(ctx context.Context, r *request, do func(context.Context, throttle.Grant) error) (*done, error) {
	b, err := read(r, func(b *ref) string { return b.Scope })
	if err != nil {
		return nil, err
	}
	g, err := h.load(ctx, r, *b)
	if err == nil {
		err = do(ctx, g)
	}
	return &done{ID: b.ID}, err
}

func (h *Handler) load(ctx context.Context, r *request, b ref) (throttle.Grant, error) {
	if b.ID == "" {
		return throttle.Grant{}, &fault{http.StatusBadRequest, "the field id is missing", forms["id"]}
	}
	return h.cfg.Limiter.LoadGrant(ctx, b.Scope, r.own(b.ID))
}

// heartbeat is how often a lease that its connection holds writes an empty line, so that no proxy closes the connection.
const heartbeat = 5 * time.Second

// hold holds a lease until its connection ends: the answer is one line, empty lines, and the error if the lease is lost.
func (h *Handler) hold(ctx context.Context, r *request, d throttle.Decision, answer *decision) error {
	leave, err := h.enter()
	if err != nil {
		_ = h.cfg.Limiter.Refund(ctx, d.Grant)
		return err
	}
	defer leave()
	held, lease := h.cfg.Limiter.Lease(ctx, d.Grant)
	defer func() { _ = lease.Release(held) }() // if it fails, the limiter sends it again
	conn := http.NewResponseController(r.w)
	_, _ = conn.SetReadDeadline(time.Time{}), conn.SetWriteDeadline(time.Time{})
	write(r.w, http.StatusOK, answer)
	beats := time.NewTicker(heartbeat)
	defer beats.Stop()
	for conn.Flush() == nil {
		select {
		case <-held.Done():
			if ctx.Err() == nil {
				_ = json.NewEncoder(r.w).Encode(faultOf(throttle.ErrLeaseLost))
			}
			return nil
		case <-beats.C:
			_, _ = r.w.Write([]byte("\n"))
		case <-ctx.Done(): // a lease without places ends with nothing else
			return nil
		}
	}
	return nil
}
