package policystore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Past knows the limits of the past: those of a limiter in this process, and the versions that a store
// keeps. It is safe for concurrent use.
type Past struct {
	store   *Store
	limiter *throttle.Limiter

	mu     sync.Mutex
	asked  time.Time // when the store was asked last
	known  string    // what stood for its last version then
	before []*policy.Policy
}

// NewPast returns the Past of a store and a limiter. It does no I/O.
func NewPast(store *Store, limiter *throttle.Limiter) *Past {
	return &Past{store: store, limiter: limiter}
}

// NeverAdmitted reports whether a task that costs too much now, which why says as a *policy.CostError,
// was admitted by none of the past limits.
//
// It returns false for any other why, and while the store does not answer, so that no task is lost.
// Costs at most one round trip each 400 ms, and a few more after each change: the kept versions are
// read again, and stay in memory.
func (p *Past) NeverAdmitted(ctx context.Context, task throttle.Request, why error) bool {
	if !errors.As(why, new(*policy.CostError)) {
		return false
	}
	admits := func(before *policy.Policy) bool { return task.Check(before) == nil }
	if slices.ContainsFunc(p.limiter.EarlierPolicies(), admits) {
		return false
	}
	kept, err := p.kept(ctx)
	return err == nil && !slices.ContainsFunc(kept, admits)
}

// kept returns what the versions of the store came to, each when it came into force.
func (p *Past) kept(ctx context.Context) ([]*policy.Policy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked.IsZero() && time.Since(p.asked) < look {
		return p.before, nil
	}
	mark, err := p.store.mark(ctx, p.store.rdb)
	if err != nil {
		return nil, err
	}
	if mark != p.known || p.asked.IsZero() {
		before, err := p.read(ctx)
		if err != nil {
			return nil, err
		}
		p.before, p.known = before, mark
	}
	p.asked = time.Now()
	return p.before, nil
}

func (p *Past) read(ctx context.Context) (all []*policy.Policy, err error) {
	kept, err := p.store.policies(ctx)
	for _, one := range kept {
		all = append(all, one.policy)
	}
	return all, err
}

// versioned is a version, and what it came to when it came into force.
type versioned struct {
	Version
	policy *policy.Policy
}

// policies reads all versions, newest last. Those that are not understood are left out.
func (s *Store) policies(ctx context.Context) (all []versioned, err error) {
	list, err := s.History(ctx)
	if err != nil {
		return nil, err
	}
	bases := map[string]*policy.Policy{}
	for _, v := range list {
		sum := ""
		if source := v.source(); source != nil {
			sum = source.Sum
		}
		base := bases[sum]
		if base == nil {
			base, err = s.base(ctx, s.rdb, v)
			if errors.As(err, new(*DamagedError)) {
				continue
			} else if err != nil {
				return nil, err
			}
			bases[sum] = base
		}
		if policy, _, err := v.policy(base, v.InForce); err == nil {
			all = append(all, versioned{v, policy})
		}
	}
	return all, nil
}

// UnmatchedSince returns the version since which a scope that met a rule before meets none. If the
// rule ended by its own time, it is the version that had the rule. known is false if none of the kept
// versions had a rule for the scope, and has no meaning for a scope that meets a rule now. Costs one
// round trip, and one for each source among the versions. The error is a *policy.ScopeError, or that
// of History.
func (s *Store) UnmatchedSince(ctx context.Context, scope string) (since Version, known bool, err error) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return Version{}, false, err
	}
	kept, err := s.policies(ctx)
	if err != nil {
		return Version{}, false, err
	}
	for i, one := range slices.Backward(kept) {
		if _, err := one.policy.Match(parsed); err == nil {
			return kept[min(i+1, len(kept)-1)].Version, true, nil
		}
	}
	return Version{}, false, nil
}
