package wire

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Scopes caches the compiled scopes of a policy, up to a bound: a flood of new scopes costs work again, and no memory. It is safe
// for concurrent use.
type Scopes struct {
	mu       sync.RWMutex
	policy   *policy.Policy
	compiler Compiler
	known    map[string]*Scope
	pools    map[policy.Scope]*Pool
	changed  chan struct{}    // closed when the policy changes
	before   []*policy.Policy // earlier policies, the latest last
	now      func(prefix string) time.Time
	attach   func(*Scope, *policy.Policy) any
	forgets  int64 // how often Forget was called

	// Touch is called with the names whose tiers the rules of a scope follow from, each time that it is used. Nil for none.
	Touch func(names []policy.Scope)
}

const (
	maxScopes = 10_000
	maxPools  = 100
	// keptPolicies is how many earlier policies are kept.
	keptPolicies = 16
)

// NewScopes returns a cache for a policy; compiler has no version yet. now returns the time of a provider's server, and attach
// what each compiled scope has as Attached.
func NewScopes(p *policy.Policy, compiler Compiler, now func(prefix string) time.Time, attach func(*Scope, *policy.Policy) any) *Scopes {
	s := &Scopes{compiler: compiler, now: now, attach: attach, changed: make(chan struct{})}
	s.use(p)
	return s
}

// use makes p the policy. Of two processes with different policies, the later version counts.
func (s *Scopes) use(p *policy.Policy) {
	s.policy, s.known, s.pools = p, map[string]*Scope{}, map[policy.Scope]*Pool{}
	s.compiler.Version = max(time.Now().UnixMicro(), s.compiler.Version+1)
	s.compiler.Policy = int64(p.Digest() >> 11) //nolint:gosec // 53 bits
}

// Set replaces the policy. Scopes are compiled again when they are next used.
func (s *Scopes) Set(p *policy.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = append(s.before, s.policy)
	s.before = s.before[max(0, len(s.before)-keptPolicies):]
	s.use(p)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Policy returns the policy, and a channel that Set closes.
func (s *Scopes) Policy() (*policy.Policy, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.policy, s.changed
}

// Earlier returns the policies before the present one, the latest last: 16 at most.
func (s *Scopes) Earlier() []*policy.Policy {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.before)
}

func (s *Scopes) present() (*policy.Policy, Compiler) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.policy, s.compiler
}

// Version returns the version and the digest of the present policy, as texts of rules have them.
func (s *Scopes) Version() (version, digest int64) {
	_, c := s.present()
	return c.Version, c.Policy
}

// Of returns what applies at a scope now. The error is a *policy.ScopeError or *policy.UnmatchedError.
func (s *Scopes) Of(scope string) (*Scope, error) {
	s.mu.RLock()
	known := s.known[scope]
	s.mu.RUnlock()
	if known != nil && (known.Until == Never || known.Holds(s.now(known.Prefix).UnixMicro())) {
		s.touch(known.Tiered)
		return known, nil
	}
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	return s.At(parsed, s.now(Prefix(s.compiler.Base, parsed.Provider())))
}

// Each visits the scopes in the cache.
func (s *Scopes) Each(visit func(*Scope)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, compiled := range s.known {
		visit(compiled)
	}
}

// Alone compiles a scope with one rule only, at a time of the server's clock. It does not cache the result.
func (s *Scopes) Alone(scope policy.Scope, b policy.MatchedRule, at time.Time) *Scope {
	p, compiler := s.present()
	compiled := compiler.Compile(scope, []policy.MatchedRule{b}, nil, nil, at)
	compiled.Attached = s.attach(compiled, p)
	return compiled
}

// At returns what applies at a scope at a time of the server's clock. It is for callers that know from a reply that Of's clock is off.
func (s *Scopes) At(scope policy.Scope, at time.Time) (*Scope, error) {
	p, compiler := s.present()
	tiered := p.TieredNames(scope) // this asks for tiers that are not known yet, before forgets is read
	s.touch(tiered)
	s.mu.RLock()
	forgets := s.forgets
	s.mu.RUnlock()
	all, err := p.MatchAt(scope, at)
	if err != nil {
		return nil, err
	}
	compiled := compiler.Compile(scope, all, p.Weights(scope), s.pool(p, compiler, scope, at, forgets), at)
	compiled.Breakers, compiled.Tiered = p.Breakers(scope), tiered
	compiled.Attached = s.attach(compiled, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.compiler.Version == compiler.Version && s.forgets == forgets {
		if len(s.known) >= maxScopes {
			clear(s.known)
		}
		s.known[scope.String()] = compiled
	}
	return compiled, nil
}

func (s *Scopes) touch(tiered []policy.Scope) {
	if tiered != nil && s.Touch != nil {
		s.Touch(tiered)
	}
}

// Forget has the scopes at and below a name compiled again when they are next used: its tier is another one.
func (s *Scopes) Forget(name policy.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgets++
	maps.DeleteFunc(s.known, func(_ string, c *Scope) bool { return c.Scope.Prefix(name.Len()) == name })
	maps.DeleteFunc(s.pools, func(level policy.Scope, _ *Pool) bool { return level.Prefix(name.Len()) == name })
}

// Unpaused compiles a scope without the pauses of the policy, for the time for which the scope holds. It does not cache the result.
func (s *Scopes) Unpaused(of *Scope) *Scope {
	_, compiler := s.present()
	rules := slices.DeleteFunc(slices.Clone(of.All), policy.MatchedRule.Paused)
	return compiler.Compile(of.Scope, rules, nil, of.Pool, time.UnixMicro(of.From))
}

// pool returns the pool on a scope's path at a time, nil for none. It is compiled once for all scopes below its level, and kept unless Forget
// was called since there were as many forgets.
func (s *Scopes) pool(p *policy.Policy, compiler Compiler, scope policy.Scope, at time.Time, forgets int64) *Pool {
	level, of := p.PoolOf(scope)
	if len(of.Members) == 0 {
		return nil
	}
	s.mu.RLock()
	known := s.pools[level]
	s.mu.RUnlock()
	if us := at.UnixMicro(); known != nil && known.version == compiler.Version && known.from <= us && us < known.until {
		return known
	}
	pool := compiler.CompilePool(level, of, func(member string) []policy.MatchedRule { return p.MatchMember(level, member, at) }, at)
	for i := range pool.Members {
		m := &pool.Members[i]
		m.Breakers = slices.DeleteFunc(p.Breakers(policy.MemberScope(level, m.Name)), func(b policy.MatchedBreaker) bool { return b.Scope.Len() <= level.Len() })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forgets != forgets {
		return pool
	}
	if len(s.pools) >= maxPools {
		clear(s.pools)
	}
	s.pools[level] = pool
	return pool
}
