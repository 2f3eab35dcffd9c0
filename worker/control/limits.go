package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Limits is the version of the limits that stands in Redis, read once for several answers. The zero Limits is unknown.
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

// namedScopes are the scopes that a policy names, by name. "*" stands for no single name.
type namedScopes struct {
	policy     *policy.Policy
	byProvider map[string][]string
	paused     []string // those with a pause of their own
}

// named returns the scopes that the limits name. It does no I/O, and walks a tree of 100,000 scopes once for
// each change of the limits.
func (s *Service) named() *namedScopes {
	p := s.limiter.Policy()
	if n := s.names.Load(); n != nil && n.policy == p {
		return n
	}
	n := &namedScopes{policy: p, byProvider: map[string][]string{}}
	_, tree := p.Limits()
	for provider, config := range tree {
		if provider != "*" {
			n.add(provider, provider, config)
			slices.Sort(n.byProvider[provider])
		}
	}
	slices.Sort(n.paused)
	s.names.Store(n)
	return n
}

func (n *namedScopes) add(provider, at string, config policy.ScopeConfig) {
	n.byProvider[provider] = append(n.byProvider[provider], at)
	if config.Pause == policy.PauseOn {
		n.paused = append(n.paused, at)
	}
	for name, below := range config.Scopes {
		if name != "*" {
			n.add(provider, at+"/"+name, below)
		}
	}
}

func (n *namedScopes) has(scope string) bool {
	_, is := slices.BinarySearch(n.byProvider[providerOf(scope)], scope)
	return is
}

// Pause is the pause that holds a scope. docs/json.md has its fields.
type Pause struct {
	PausedScope string `json:"paused_scope,omitempty"`
	PausedSince Time   `json:"paused_since,omitzero"`
	PausedUntil Time   `json:"paused_until,omitzero"`
	PausedBy    string `json:"paused_by,omitempty"`
	PausedUser  string `json:"paused_user,omitempty"`
}

// PauseOf returns the pause that holds a scope, the outermost of several. It does no I/O.
func (s *Service) PauseOf(scope string, limits Limits) (p Pause) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return p
	}
	bounds, _ := s.limiter.Policy().Match(parsed) // no rule is no pause
	for _, b := range bounds {
		if b.Paused() && (b.Until.IsZero() || limits.At.Before(b.Until)) {
			p = Pause{PausedScope: b.Scope.String(), PausedUntil: At(b.Until)}
			if limits.Version != nil {
				p.setAuthor(limits.Version, b.Pattern, limits.At)
			}
			break
		}
	}
	return p
}

// setAuthor sets the author of a pause at a place of the limits, whether it was made by hand or in the file.
func (p *Pause) setAuthor(v *policystore.Version, pattern string, now time.Time) {
	if live, is := v.Override(pattern, policystore.PausedField, now); is {
		p.PausedBy, p.PausedUser, p.PausedSince = live.UpdatedBy, live.UpdatedUser, At(live.CreatedAt)
		return
	}
	if source := cmp.Or(v.Imported, v.File); source != nil {
		p.PausedBy, p.PausedUser, p.PausedSince = source.By, source.User, At(source.At)
	}
}

// Users lists the applications that may spend from a scope, if not all may. docs/json.md has its fields.
type Users struct {
	Apps      []string `json:"apps,omitempty"`
	AppsScope string   `json:"apps_scope,omitempty"` // the lowest level that lists them
}

func (s *Service) users(scope string) Users {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return Users{}
	}
	apps, level := s.limiter.Policy().Apps(parsed)
	return Users{Apps: apps, AppsScope: level.String()}
}

// NoRule says whether no rule matches a scope, and since when. docs/json.md has its fields.
type NoRule struct {
	Unmatched      bool   `json:"unmatched,omitempty"`
	UnmatchedSince int64  `json:"unmatched_since,omitempty"` // version
	UnmatchedBy    string `json:"unmatched_by,omitempty"`
	UnmatchedAt    Time   `json:"unmatched_at,omitzero"`

	Published bool `json:"-"` // the limits are the published ones, whose versions were searched
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

// openLimiter returns a limiter that finds the waiters of scopes that no rule matches, too. Its forecasts mean nothing.
func (s *Service) openLimiter() (*throttle.Limiter, error) {
	open, err := policy.New(policy.UnmatchedAllow, nil)
	if err != nil {
		return nil, err
	}
	return throttle.New(s.rdb, open, throttle.Config{Prefix: s.prefix})
}

// unmatchedScope returns the state of a scope that no rule matches, if it once had a rule or tasks wait in it. Any other is refused.
func (s *Service) unmatchedScope(ctx context.Context, name string, refused error) (Scope, error) {
	none, err := s.noRule(ctx, name)
	if err != nil {
		return Scope{}, err
	}
	limiter, err := s.openLimiter()
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
