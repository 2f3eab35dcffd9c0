package control

import (
	"context"
	"errors"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// NoRule says whether no rule matches a scope, and since when. docs/json.md has its fields.
type NoRule struct {
	Unmatched      bool   `json:"unmatched,omitempty"`
	UnmatchedSince int64  `json:"unmatched_since,omitempty"` // version
	UnmatchedBy    string `json:"unmatched_by,omitempty"`
	UnmatchedAt    Time   `json:"unmatched_at,omitzero"`

	// Published says that the limits are the published ones, whose versions were searched.
	Published bool `json:"-"`
}

// noRule returns since when no rule matches a scope. The scope must be one that no rule matches.
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

// queued returns a limiter that finds the waiters of all scopes, whether the limits match them or not.
// Its forecasts of starts mean nothing.
func (s *Service) queued() (*throttle.Limiter, error) {
	open, err := policy.New(policy.UnmatchedAllow, nil)
	if err != nil {
		return nil, err
	}
	return throttle.New(s.rdb, open, throttle.Config{Prefix: s.prefix})
}

// unmatchedScope returns the state of a scope that no rule matches, if it once had a rule, or if tasks
// wait in it. Any other is probably mistyped, and is refused.
func (s *Service) unmatchedScope(ctx context.Context, name string, refused error) (Scope, error) {
	none, err := s.noRule(ctx, name)
	if err != nil {
		return Scope{}, err
	}
	limiter, err := s.queued()
	if err != nil {
		return Scope{}, err
	}
	got, err := inspect.Of(limiter.Waitlist()).Scope(ctx, name)
	if err != nil {
		return Scope{}, err
	}
	if none.UnmatchedSince == 0 && got.Waiting+got.Dispatched == 0 {
		return Scope{}, refused
	}
	active, err := s.active(name)
	return Scope{
		Scope: name, At: At(got.At), Waiting: got.Waiting, Queues: got.Scopes, Dispatched: got.Dispatched, Active: active, NoRule: none,
	}, err
}

// IsUnmatched reports whether an error says that no rule matches a scope.
func IsUnmatched(err error) bool { return errors.As(err, new(*policy.UnmatchedError)) }
