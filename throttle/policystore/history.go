package policystore

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Change is a version and what it changed.
type Change struct {
	Version Version
	// Known is false if the differences are not known: the version before is not kept any more, or one of the two cannot be decoded.
	Known bool
	// Differences are those between the limits in force just before the version and those of the version, both as of the time at which it
	// was written, in the order of the scopes.
	Differences []Difference
}

// Changes iterates over the versions that are kept, oldest first, each with what it changed. A version that cannot be decoded has only
// a number. The last pair has an error if Redis did not answer. Costs up to nine round trips.
func (s *Store) Changes(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		before := state{base: &base{policy: new(policy.Policy)}}
		for after, err := range s.history(ctx) {
			c := Change{Version: after.Version}
			if err == nil && after.base != nil && before.base != nil && before.Number == after.Number-1 {
				list, damaged := differences(&before, &after, after.At, after.At)
				c.Differences, c.Known = list, damaged == nil
			}
			if !yield(c, err) {
				return
			}
			before = after
		}
	}
}

// pageSize is how many versions are read at once.
const pageSize = 25

// history iterates over the versions that are kept, oldest first. The base of one that cannot be decoded is nil; versions in a row
// that rest on the same share it. The last pair has an error if Redis did not answer.
func (s *Store) history(ctx context.Context) iter.Seq2[state, error] {
	return func(yield func(state, error) bool) {
		newest, err := s.Newest(ctx)
		var last state
		for from := max(1, newest-Kept+1); err == nil && from <= newest; from += pageSize {
			var page []state
			page, err = s.page(ctx, from, min(newest, from+pageSize-1), last)
			for _, last = range page {
				if !yield(last, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(state{}, err)
		}
	}
}

// page reads some versions, and their bases but for that of last, which comes before them. Costs two round trips.
func (s *Store) page(ctx context.Context, from, to int64, last state) (page []state, err error) {
	var names, sources []string
	for number := from; number <= to; number++ {
		names = append(names, versionField(number))
	}
	texts, err := s.fields(ctx, s.rdb, names...)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if texts[name] == "" {
			continue // it is not kept any more
		}
		one := state{Version: Version{Number: from + int64(i)}}
		if r, err := decode(one.Number, texts[name]); err == nil {
			one = state{r.Version, new(base)}
		}
		page = append(page, one)
		if source := one.source(); source != nil {
			sources = append(sources, sourcePrefix+source.Sum)
		}
	}
	if texts, err = s.fields(ctx, s.rdb, unique(sources)...); err != nil {
		return nil, err
	}
	for i, one := range page {
		if one.base != nil {
			page[i].base = one.baseIn(texts, last)
		}
		last = page[i]
	}
	return page, nil
}

// baseIn returns the base of a version, that of last if it is the same, or nil if it cannot be decoded.
func (s *state) baseIn(texts map[string]string, last state) *base {
	source := s.source()
	switch {
	case last.base != nil && sameSource(source, last.source()):
		return last.base
	case source == nil:
		return &base{policy: new(policy.Policy)}
	}
	p, err := parseSource(s.Number, texts[sourcePrefix+source.Sum])
	if err != nil {
		return nil
	}
	return &base{policy: p}
}

// policies returns the versions that can be decoded, oldest first, and the policy of each when it came into force.
func (s *Store) policies(ctx context.Context) (versions []Version, policies []*policy.Policy, err error) {
	for k, err := range s.history(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if k.base == nil {
			continue
		}
		if p, _, err := k.policy(k.base.policy, k.InForce); err == nil {
			versions, policies = append(versions, k.Version), append(policies, p)
		}
	}
	return versions, policies, nil
}

// UnmatchedSince returns the version since which a scope that met a rule before meets none. If the rule ended by its own time, it is
// the version that had the rule. known is false if none of the kept versions had a rule for the scope, and has no meaning for a scope
// that meets a rule now. Costs what Changes costs. The error is a *policy.ScopeError, or Redis's.
func (s *Store) UnmatchedSince(ctx context.Context, scope string) (since Version, known bool, err error) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return Version{}, false, err
	}
	versions, policies, err := s.policies(ctx)
	for i, p := range slices.Backward(policies) {
		if _, unmatched := p.Match(parsed); unmatched == nil {
			return versions[min(i+1, len(versions)-1)], true, nil
		}
	}
	return Version{}, false, err
}

// NeverAdmitted returns a function that reports whether a task that costs too much now, which
// why says as a *policy.CostError, was admitted by none of the past limits: those of the limiter, and of the versions in the store.
//
// It returns false for any other why, and while the store does not answer, so that no task is lost. After each change of the limits a
// call costs what Changes costs; the policies stay in memory.
func NeverAdmitted(s *Store, l *throttle.Limiter) func(ctx context.Context, task throttle.Request, why error) bool {
	var mu sync.Mutex
	var now *policy.Policy // when the versions were read
	var kept []*policy.Policy
	return func(ctx context.Context, task throttle.Request, why error) bool {
		if !errors.As(why, new(*policy.CostError)) {
			return false
		}
		admits := func(p *policy.Policy) bool { return task.Check(p) == nil }
		if slices.ContainsFunc(l.EarlierPolicies(), admits) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if is := l.Policy(); is != now {
			_, policies, err := s.policies(ctx)
			if err != nil {
				return false
			}
			kept, now = policies, is
		}
		return !slices.ContainsFunc(kept, admits)
	}
}
