package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Limits is the version of the limits that stands in Redis, read once for several answers. The zero
// Limits is unknown.
type Limits struct {
	Version *policystore.Version // nil if the limits come from a file, or there are none
	At      time.Time            // the server's time
}

// Limits reads the version of the limits that stands. It costs three round trips. A version that cannot
// be read is unknown, and no error. The error is Redis's.
func (s *Service) Limits(ctx context.Context) (Limits, error) {
	if s.store == nil {
		return Limits{At: s.now()}, nil
	}
	at, err := s.store.Time(ctx)
	if err != nil {
		return Limits{At: s.now()}, err
	}
	v, err := s.store.Current(ctx)
	if err != nil {
		return Limits{At: at}, nil //nolint:nilerr // Redis has answered: there are no limits, or later ones
	}
	return Limits{Version: &v, At: at}, nil
}

// Level is the state of a scope, as far as a few commands tell it.
type Level struct {
	Scope string
	At    time.Time // the server's time
	// Waiting is the number of tasks that wait in the scope and below it, and Own the part of them in the scope's own lines.
	Waiting, Own int64
	// Rules are the rules on the scope's path that apply now, outermost first. Binding is the index of the
	// fullest, -1 for none.
	Rules   []Rule
	Binding int
	// Suspended says that a rule has limit 0.
	Suspended bool
	// Unmatched says that no rule matches the scope itself; scopes below it may have some.
	Unmatched bool
	Owner     string
	Pause
	Upstream throttle.UpstreamState
}

// Providers returns the names of the providers in the limits, and of those for which tasks waited
// within a day. Costs one round trip.
func (s *Service) Providers(ctx context.Context) ([]string, error) {
	active, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for name := range s.named().byProvider {
		names[name] = true
	}
	for name := range active {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// LevelCost is the most Redis commands that Glance sends, without a ZCARD or two for each asynq queue, and WholeLevelCost those of Level under one concurrency rule.
const (
	LevelCost      = 4
	WholeLevelCost = LevelCost + 4
)

// Level returns the state of a scope under limits that were read before. It costs four round trips,
// however many scopes and tasks there are. The error is a *policy.ScopeError, or Redis's.
func (s *Service) Level(ctx context.Context, name string, limits Limits) (Level, error) {
	return s.level(ctx, name, limits, s.limiter.Forecast)
}

// Glance is Level without what waits under each rule, and when the rule is reset. It costs three round trips.
func (s *Service) Glance(ctx context.Context, name string, limits Limits) (Level, error) {
	return s.level(ctx, name, limits, func(ctx context.Context, scope string) (throttle.Forecast, error) {
		d, err := s.limiter.Peek(ctx, throttle.Request{Scope: scope})
		now := throttle.Forecast{At: d.At}
		for _, r := range d.Rules {
			now.Rules = append(now.Rules, throttle.RuleForecast{RuleState: r})
		}
		return now, err
	})
}

func (s *Service) level(ctx context.Context, name string, limits Limits, look func(context.Context, string) (throttle.Forecast, error)) (Level, error) {
	l := Level{Scope: name, At: limits.At, Binding: -1, Pause: s.pause(name, limits.Version, limits.At)}
	scope, err := policy.ParseScope(name)
	if err != nil {
		return l, err
	}
	l.Owner = s.limiter.Policy().Owner(scope)
	provider, _, _ := strings.Cut(name, "/")
	waiting, err := inspect.Of(s.limiter.Waitlist()).WaitingIn(ctx, provider, name)
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
	now, err := look(ctx, name)
	if err != nil {
		return l, err
	}
	l.At, l.Rules = now.At, rulesOf(now, l.Upstream)
	l.judge()
	return l, nil
}

// judge finds the rule that binds.
func (l *Level) judge() {
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
}

// Counts returns what Used is a part of: the limit that is in force, which is the API's if it sent one.
// For a token bucket it is the burst, whatever its rate is by now.
func (r Rule) Counts() int64 {
	if r.Admits > 0 && r.Algorithm != policy.TokenBucket {
		return r.Admits
	}
	return r.Limit
}

// Branch is a scope below another one, with what waits there.
type Branch struct {
	Scope    string
	Waiting  int64
	Own      int64 // the part that waits in its own queue
	Children int64
	Named    bool // the limits name it
}

// Outline is the list of a provider's scopes.
type Outline struct {
	Branches []Branch // most waiting first, then by name
	More     bool     // there are others
}

// Outline returns the scopes of a provider: those that the limits name, those in which tasks wait, and
// those above them. It reads at most as many scopes as asked for, 1000 in two round trips. The error is
// Redis's.
func (s *Service) Outline(ctx context.Context, provider string, most int) (Outline, error) {
	waiting, more, err := inspect.Of(s.limiter.Waitlist()).Outline(ctx, provider, most)
	if err != nil {
		return Outline{}, err
	}
	out, named, seen := Outline{More: more}, s.named(), map[string]bool{}
	for _, w := range waiting {
		seen[w.Scope] = true
		out.Branches = append(out.Branches, Branch{w.Scope, w.Tasks, w.Own, w.Children, named.has(w.Scope)})
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

// NextTurn is a task in a line of a scope.
type NextTurn struct {
	Queue, ID string
	Position  int64 // in the line of its asynq queue, from 1
	Start     Time  // zero if no clock can tell
	Range
	Reason    Reason
	Rule      string
	RuleScope string
}

// Turns is a part of the lines of a scope, one for each asynq queue, without those of the scopes below it.
type Turns struct {
	Scope string
	At    time.Time
	From  int   // the place of the first task, from 0
	All   int64 // how many tasks the lines have
	List  []NextTurn
	// Unmatched says that no rule matches the scope any more.
	Unmatched bool
}

// TurnsAtOnce is how many tasks Turns returns at most.
const TurnsAtOnce = 64

// Turns returns the tasks of a scope's own lines that are next, from a place on; 0 is the first. The lines follow each other, by the
// name of their asynq queue. It costs what Queued of the waiting tasks does, however long the lines are. The error is a *policy.ScopeError, or Redis's.
func (s *Service) Turns(ctx context.Context, scope string, from, most int) (Turns, error) {
	t := Turns{Scope: scope, From: from}
	limiter := s.limiter
	list, all, err := inspect.Of(limiter.Waitlist()).Queued(ctx, scope, from, most)
	if IsUnmatched(err) {
		t.Unmatched = true
		if limiter, err = s.queued(); err != nil {
			return t, err
		}
		list, all, err = inspect.Of(limiter.Waitlist()).Queued(ctx, scope, from, most)
	}
	if err != nil {
		return t, err
	}
	t.All = all
	for _, one := range list {
		next := NextTurn{Queue: one.Queue, ID: one.ID, Position: one.Ahead + 1, Reason: queue.ReasonOf(one.Binding, one.Paused)}
		next.Start, next.Range = expected(one.At, one.Expected)
		next.Rule, next.RuleScope, t.At = one.Binding.Rule.Name, one.Binding.Scope.String(), one.At
		if changes(limiter, scope, next.Start.Time) {
			next.Start, next.Range, next.Reason = Time{}, Range{}, ReasonHours
		}
		if t.Unmatched {
			next.Start, next.Range, next.Reason = Time{}, Range{}, ReasonUnmatched
		}
		t.List = append(t.List, next)
	}
	return t, nil
}

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
