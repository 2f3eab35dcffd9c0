package control

import (
	"context"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// Scope is what waits in a scope and below it, and for what. docs/json.md has its fields.
type Scope struct {
	Scope      string `json:"scope"`
	At         Time   `json:"at"`
	Waiting    int64  `json:"waiting"`
	Queues     int    `json:"queues"`
	Dispatched int64  `json:"dispatched"`
	Active     int    `json:"active"`
	NextStart  Time   `json:"next_start,omitzero"`
	Range
	Reason    Reason `json:"reason,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RuleScope string `json:"rule_scope,omitempty"`

	// UpstreamUntil is the end of the API's pause that ends last, and UpstreamScope its scope.
	UpstreamUntil Time   `json:"upstream_until,omitzero"`
	UpstreamScope string `json:"upstream_scope,omitempty"`

	Rules   []Rule   `json:"rules,omitempty"`
	Shadows []Shadow `json:"shadows,omitempty"`
	Hours   []Hours  `json:"hours,omitempty"`

	// UpstreamEvents are the past changes by the API's answers, newest first.
	UpstreamEvents []UpstreamEvent `json:"upstream_events,omitempty"`
	Pause
	Users
	NoRule

	// Upstream is the state of the scope by its API's answers.
	Upstream throttle.UpstreamState `json:"-"`
}

// Hours is a rule that applies in certain hours only. docs/json.md has its fields.
type Hours struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Holds     bool   `json:"holds"`
	Changes   Time   `json:"changes"`
}

// Shadow is a shadow rule that applies to the scope's tasks. docs/json.md has its fields.
type Shadow struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// Scope returns what waits in a scope and below it. The error is that of Limiter.Inspect, or Redis's.
// IsUnmatched recognises the error for a scope that no rule matches, and none ever did.
func (s *Service) Scope(ctx context.Context, who Actor, name string) (Scope, error) {
	if err := s.May(who, VerbSee, name); err != nil {
		return Scope{}, err
	}
	got, err := inspect.Of(s.limiter.Waitlist()).Scope(ctx, name)
	if IsUnmatched(err) {
		return s.unmatchedScope(ctx, name, err)
	}
	if err != nil {
		return Scope{}, err
	}
	r := Scope{
		Scope: name, At: At(got.At), Waiting: got.Waiting, Queues: got.Scopes, Dispatched: got.Dispatched,
		Rule: got.Binding.Rule.Name, RuleScope: got.Binding.Scope.String(), Users: s.users(name),
	}
	if got.Waiting > 0 {
		r.NextStart, r.Range = expected(got.At, got.NextStart)
		r.Reason = queue.ReasonOf(got.Binding, got.Paused)
	}
	v, now := s.current(ctx)
	r.Pause = s.pause(name, v, now)
	if r.Upstream, err = s.limiter.UpstreamState(ctx, name); err != nil {
		return r, err
	}
	for _, p := range r.Upstream.Pauses {
		if p.Until.After(r.UpstreamUntil.Time) {
			r.UpstreamUntil, r.UpstreamScope = At(p.Until), p.Scope
		}
	}
	if r.Rules, err = s.rules(ctx, name, r.Upstream); err != nil {
		return r, err
	}
	if r.Active, err = s.active(name); err != nil {
		return r, err
	}
	if r.Shadows, err = s.shadows(ctx, name); err != nil {
		return r, err
	}
	if r.Hours, err = s.hours(name); err != nil {
		return r, err
	}
	r.UpstreamEvents, err = s.UpstreamEvents(ctx, who, name)
	return r, err
}

func (s *Service) hours(name string) (list []Hours, err error) {
	all, err := s.limiter.Hours(name)
	for _, h := range all {
		list = append(list, Hours{h.Rule.Name, h.Scope.String(), h.Holds, At(h.Changes)})
	}
	return list, err
}

func (s *Service) shadows(ctx context.Context, name string) (list []Shadow, err error) {
	states, err := s.limiter.PeekShadows(ctx, name)
	for _, state := range states {
		list = append(list, Shadow{state.Rule, state.Scope, state.Limit, state.Remaining})
	}
	return list, err
}
