package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/headway-go/headway/throttle"
)

// Trouble counts the scopes below one that do not start what they could.
type Trouble struct {
	Suspended, Unmatched int // those in whose own queues tasks wait
	Paused               int // by the limits, each with what is below it once
	UpstreamPaused, Cut  int // by their APIs
	More                 bool
}

// String returns what there is of it: "1 paused, 2 cut by the API"; empty for none.
func (t Trouble) String() string {
	var parts []string
	for _, one := range []struct {
		n    int
		what string
	}{
		{t.Suspended, "suspended"}, {t.Unmatched, "without a rule"}, {t.Paused, "paused"}, {t.UpstreamPaused, "paused by the API"}, {t.Cut, "cut by the API"},
	} {
		if one.n > 0 {
			parts = append(parts, fmt.Sprint(one.n, " ", one.what))
		}
	}
	if t.More && len(parts) > 0 {
		return "at least " + strings.Join(parts, ", ")
	}
	return strings.Join(parts, ", ")
}

// Upstream is what APIs have paused and cut of a provider's scopes.
type Upstream struct {
	throttle.UpstreamState
	More bool // there is more, which was not read
}

// UpstreamCost is the most Redis commands that Upstream sends.
const UpstreamCost = 2

// Upstream returns what APIs have paused and cut of a provider's scopes. It costs one round trip. Its errors are those of Level.
func (s *Service) Upstream(ctx context.Context, provider string) (u Upstream, err error) {
	u.UpstreamState, u.More, err = s.limiter.UpstreamBelow(ctx, provider)
	return u, err
}

// Of returns what an API has paused and cut of a scope itself.
func (u Upstream) Of(scope string) (paused, cut bool) {
	for _, p := range u.Pauses {
		paused = paused || p.Scope == scope
	}
	for _, c := range u.Corrections {
		cut = cut || c.Bound.Scope.String() == scope && c.Limit < c.Bound.Rule.Limit
	}
	return paused, cut
}

// Below returns the trouble of the scopes below one, as far as an outline of its provider has them, without the pauses that PausedBelow
// counts. It does no I/O.
func (s *Service) Below(scope string, out Outline, u Upstream, limits Limits) Trouble {
	t, under, named := Trouble{More: out.More || u.More}, scope+"/", s.named()
	for _, b := range out.Branches {
		if !strings.HasPrefix(b.Scope, under) || b.Waiting == 0 {
			continue
		}
		h := holdOf(s.limiter.Policy(), b.Scope, limits.At)
		switch {
		case h.Reason == ReasonPaused && h.RuleScope == b.Scope && !named.pauses(b.Scope):
			t.Paused++ // by the pause of a "*"
		case b.Own == 0:
		case h.Reason == ReasonSuspended:
			t.Suspended++
		case h.Reason == ReasonUnmatched:
			t.Unmatched++
		}
	}
	for _, p := range u.Pauses {
		if strings.HasPrefix(p.Scope, under) {
			t.UpstreamPaused++
		}
	}
	for _, c := range u.Corrections {
		if strings.HasPrefix(c.Bound.Scope.String(), under) && c.Limit < c.Bound.Rule.Limit {
			t.Cut++
		}
	}
	return t
}

// PausedBelow returns how many scopes that the limits name below one have a pause of their own, without those below another of them. It
// does no I/O.
func (s *Service) PausedBelow(scope string, limits Limits) (n int) {
	for _, name := range s.named().paused {
		if strings.HasPrefix(name, scope+"/") && s.pause(name, nil, limits.At).PausedScope == name {
			n++
		}
	}
	return n
}
