package control

import (
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Pause is the pause that holds a scope. docs/json.md has its fields.
type Pause struct {
	PausedScope string `json:"paused_scope,omitempty"`
	PausedSince Time   `json:"paused_since,omitzero"`
	PausedUntil Time   `json:"paused_until,omitzero"`
	PausedBy    string `json:"paused_by,omitempty"`
	PausedUser  string `json:"paused_user,omitempty"`
}

// PauseOf returns the pause that holds a scope under limits that were read before. It does no I/O.
func (s *Service) PauseOf(scope string, limits Limits) Pause {
	return s.pause(scope, limits.Version, limits.At)
}

// pause returns the pause that holds a scope, the outermost of several. v names its author, and may be
// nil.
func (s *Service) pause(scope string, v *policystore.Version, now time.Time) (p Pause) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return p
	}
	bounds, _ := s.limiter.Policy().Match(parsed) // no rule is no pause
	for _, b := range bounds {
		if !b.Paused() || !b.Until.IsZero() && !now.Before(b.Until) {
			continue
		}
		p = Pause{PausedScope: b.Scope.String(), PausedUntil: At(b.Until)}
		if v != nil {
			p.author(v, b.Pattern, now)
		}
		return p
	}
	return p
}

// author sets the author of a pause at a place of the limits, and whether it was made by hand or in the
// file.
func (p *Pause) author(v *policystore.Version, pattern string, now time.Time) {
	if live, is := v.Paused(pattern, now); is {
		p.PausedBy, p.PausedUser, p.PausedSince = live.UpdatedBy, live.UpdatedUser, At(live.Since)
		if live.Since.IsZero() {
			p.PausedSince = At(live.UpdatedAt)
		}
		return
	}
	source := v.File
	if v.Imported != nil {
		source = v.Imported
	}
	if source != nil {
		p.PausedBy, p.PausedUser, p.PausedSince = source.By, source.User, At(source.At)
	}
}
