package control

import (
	"context"
	"slices"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Member is the state of a member of a pool. docs/json.md has its fields.
type Member struct {
	Member      string `json:"member"`
	MemberScope string `json:"member_scope"`
	Reason      Reason `json:"reason,omitempty"` // why it starts nothing, whatever its limits: ReasonPaused, ReasonUpstream or ReasonBreaker
	Until       Time   `json:"until,omitzero"`
	Rules       []Rule `json:"rules,omitempty"` // of its own levels
}

// State returns in words whether something holds it: "ready", or "paused until …".
func (m Member) State() string {
	until := "until " + m.Until.String()
	switch {
	case m.Reason == ReasonPaused && m.Until.IsZero():
		return "paused until it is resumed"
	case m.Reason == ReasonPaused:
		return "paused " + until
	case m.Reason == ReasonUpstream:
		return "paused " + until + ", as the API asked"
	case m.Reason == ReasonBreaker:
		return "its breaker is open, with the next probe at " + m.Until.String()
	}
	return "ready"
}

// Members returns the members of the pool on a scope's path, none without one. Its costs and errors are those of Limiter.Members.
func (s *Service) Members(ctx context.Context, scope string) (list []Member, err error) {
	members, err := s.limiter.Members(ctx, scope)
	for _, m := range members {
		until, by := m.Held()
		one := Member{Member: m.Name, MemberScope: m.Scope, Reason: Reason(by), Until: At(until)}
		one.Rules = rulesOf(throttle.Forecast{At: m.At, Rules: m.Rules}, m.Upstream)
		list = append(list, one)
	}
	return list, err
}

// isMember reports whether a scope is that of a member of a pool. It does no I/O.
func (s *Service) isMember(name string) bool {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return false
	}
	for n := 1; n < scope.Len(); n++ {
		level, pool := s.limiter.Policy().PoolOf(scope.Prefix(n))
		is := func(m policy.Member) bool { return policy.MemberScope(level, m.Name) == scope }
		if slices.ContainsFunc(pool.Members, is) {
			return true
		}
	}
	return false
}
