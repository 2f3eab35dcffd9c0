package control

import (
	"context"
	"errors"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// NoRule says whether no rule matches a scope, and since when; docs/json.md has its fields.
type NoRule struct {
	Unmatched      bool   `json:"unmatched,omitempty"`
	UnmatchedSince int64  `json:"unmatched_since,omitempty"` // version
	UnmatchedBy    string `json:"unmatched_by,omitempty"`
	UnmatchedAt    Time   `json:"unmatched_at,omitzero"`

	// Published says that the limits are the published ones, whose versions were searched.
	Published bool `json:"-"`
}

// noRule says since when no rule matches a scope, which none does.
func (s *Service) noRule(ctx context.Context, scope string) (NoRule, error) {
	n := NoRule{Unmatched: true, Published: s.store != nil}
	if !n.Published {
		return n, nil
	}
	since, known, err := s.store.UnmatchedSince(ctx, scope)
	if err != nil || !known {
		return n, err
	}
	n.UnmatchedSince, n.UnmatchedBy, n.UnmatchedAt = since.Number, since.By, At(since.At)
	return n, nil
}

// queued returns a limiter that tells who waits in queues, whatever the limits say of the scopes. What it expects of starts means
// nothing.
func (s *Service) queued() (*throttle.Limiter, error) {
	open, err := policy.New(policy.UnmatchedAllow, nil)
	if err != nil {
		return nil, err
	}
	return throttle.New(s.rdb, open, throttle.Config{})
}

// unmatchedScope reports a scope that no rule matches: one that had a rule, or in which tasks wait. Others are most
// likely mistyped, and refused.
func (s *Service) unmatchedScope(ctx context.Context, name string, refused error) (Scope, error) {
	none, err := s.noRule(ctx, name)
	if err != nil {
		return Scope{}, err
	}
	limiter, err := s.queued()
	if err != nil {
		return Scope{}, err
	}
	got, err := limiter.Inspect(ctx, name)
	if err != nil {
		return Scope{}, err
	}
	if none.UnmatchedSince == 0 && got.Waiting+got.Dispatched == 0 {
		return Scope{}, refused
	}
	active, err := s.active(name)
	return Scope{
		Scope: name, At: At(got.At), Waiting: got.Waiting, Queues: got.Queues, Dispatched: got.Dispatched, Active: active, NoRule: none,
	}, err
}

// IsUnmatched tells whether an error says that no rule matches a scope.
func IsUnmatched(err error) bool { return errors.As(err, new(*policy.UnmatchedError)) }
