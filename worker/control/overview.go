package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Level is the state of a scope, as far as a few commands read it.
type Level struct {
	Scope string
	At    time.Time // the server's time
	// Waiting is the number of tasks that wait in the scope and below it, and Own the part of them in the scope's own queues.
	Waiting, Own int64
	Rules        []Rule // those on the scope's path that apply now, outermost first
	Binding      int    // the index of the fullest, -1 for none
	Suspended    bool   // a rule has limit 0
	Unmatched    bool   // no rule matches the scope itself; scopes below it may have some
	Owner        string
	Pool         string // the level of the pool on its path, empty for none; see Members
	Pause
	Upstream throttle.UpstreamState
}

// Providers returns the providers in the limits, and those for which tasks waited within a day. Costs one round trip.
func (s *Service) Providers(ctx context.Context) ([]string, error) {
	active, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	for name := range s.named().byProvider {
		active[name] = time.Time{}
	}
	return slices.Sorted(maps.Keys(active)), nil
}

// Level returns the state of a scope under limits that were read before. The error is a *policy.ScopeError, or Redis's. Costs four
// round trips.
func (s *Service) Level(ctx context.Context, name string, limits Limits) (Level, error) {
	l := Level{Scope: name, At: limits.At, Binding: -1, Pause: s.PauseOf(name, limits)}
	scope, err := policy.ParseScope(name)
	if err != nil {
		return l, err
	}
	l.Owner = s.limiter.Policy().Owner(scope)
	waiting, err := inspect.Of(s.limiter.Waitlist()).WaitingIn(ctx, scope.Provider(), name)
	if err != nil {
		return l, err
	}
	l.Waiting, l.Own = waiting[0].Tasks, waiting[0].Own
	l.Upstream, err = s.limiter.UpstreamState(ctx, name)
	if IsUnmatched(err) {
		l.Unmatched = true
		return l, nil
	}
	if err != nil {
		return l, err
	}
	now, err := s.limiter.Forecast(ctx, name)
	if err != nil {
		return l, err
	}
	l.At, l.Pool, l.Rules = now.At, now.Pool, rulesOf(now, l.Upstream)
	most := -1.0
	for i, r := range l.Rules {
		part := 1.0
		if limit := r.Counts(); limit > 0 {
			part = float64(r.Used) / float64(limit)
		} else {
			l.Suspended = true
		}
		if part > most {
			most, l.Binding = part, i
		}
	}
	return l, nil
}

// Branch is a scope of a provider, with what waits there.
type Branch struct {
	Scope   string
	Waiting int64
	Own     int64 // the part that waits in its own queues
	Named   bool  // the limits name it
}

// Outline is the list of a provider's scopes, and what APIs have paused and cut of them.
type Outline struct {
	Branches []Branch // most waiting first, then by name
	Upstream throttle.UpstreamState
	More     bool // there is more, which was not read
}

// Outline returns the scopes of a provider: those that the limits name, those in which tasks wait, and those above them. It reads at
// most as many scopes as asked for, 1000 in two round trips, and one more. The error is Redis's.
func (s *Service) Outline(ctx context.Context, provider string, most int) (out Outline, err error) {
	waiting, more, err := inspect.Of(s.limiter.Waitlist()).Outline(ctx, provider, most)
	if err != nil {
		return out, err
	}
	upstream, moreUpstream, err := s.limiter.UpstreamBelow(ctx, provider)
	if err != nil {
		return out, err
	}
	out.Upstream, out.More = upstream, more || moreUpstream
	named, seen := s.named(), map[string]bool{}
	for _, w := range waiting {
		seen[w.Scope] = true
		out.Branches = append(out.Branches, Branch{w.Scope, w.Tasks, w.Own, named.has(w.Scope)})
	}
	for _, name := range named.byProvider[provider] {
		if seen[name] {
			continue
		}
		if len(out.Branches) >= most {
			out.More = true
			break
		}
		out.Branches = append(out.Branches, Branch{Scope: name, Named: true})
	}
	return out, nil
}

// UpstreamOf returns whether a breaker has opened at a scope itself, and what an API has paused and cut there.
func (o Outline) UpstreamOf(scope string) (broken, paused, cut bool) {
	for _, b := range o.Upstream.Breakers {
		broken = broken || b.Scope == scope
	}
	for _, p := range o.Upstream.Pauses {
		paused = paused || p.Scope == scope
	}
	for _, c := range o.Upstream.Corrections {
		cut = cut || c.Bound.Scope.String() == scope && c.Limit < c.Bound.Rule.Limit
	}
	return broken, paused, cut
}

// Trouble counts the scopes below one that do not start what they could.
type Trouble struct {
	Suspended, Unmatched int // those in whose own queues tasks wait
	Paused               int // by the limits, each with what is below it once
	Broken               int // by open breakers
	UpstreamPaused, Cut  int // by their APIs
	More                 bool
}

// String returns the counts in words, such as "1 paused, 2 cut by the API"; empty for none.
func (t Trouble) String() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprint(n, " ", what))
		}
	}
	add(t.Suspended, "suspended")
	add(t.Unmatched, "without a rule")
	add(t.Paused, "paused")
	add(t.Broken, "with an open breaker")
	add(t.UpstreamPaused, "paused by the API")
	add(t.Cut, "cut by the API")
	if t.More && len(parts) > 0 {
		parts[0] = "at least " + parts[0]
	}
	return strings.Join(parts, ", ")
}

// Trouble returns the trouble of the scopes below one, as far as an outline of its provider has them. It does no I/O.
func (s *Service) Trouble(scope string, out Outline, limits Limits) Trouble {
	t, under, named := Trouble{More: out.More}, scope+"/", s.named()
	for _, b := range out.Branches {
		if !strings.HasPrefix(b.Scope, under) || b.Waiting == 0 {
			continue
		}
		last := heldBy(s.limiter.Policy(), b.Scope, limits.At)
		switch {
		case last.Reason == ReasonPaused && last.RuleScope == b.Scope && !slices.Contains(named.paused, b.Scope):
			t.Paused++ // by the pause of a "*"
		case b.Own == 0:
		case last.Reason == ReasonSuspended:
			t.Suspended++
		case last.Reason == ReasonUnmatched:
			t.Unmatched++
		}
	}
	for _, name := range named.paused {
		if strings.HasPrefix(name, under) && s.PauseOf(name, limits).PausedScope == name {
			t.Paused++
		}
	}
	for _, b := range out.Upstream.Breakers {
		if strings.HasPrefix(b.Scope, under) {
			t.Broken++
		}
	}
	for _, p := range out.Upstream.Pauses {
		if strings.HasPrefix(p.Scope, under) {
			t.UpstreamPaused++
		}
	}
	for _, c := range out.Upstream.Corrections {
		if strings.HasPrefix(c.Bound.Scope.String(), under) && c.Limit < c.Bound.Rule.Limit {
			t.Cut++
		}
	}
	return t
}
