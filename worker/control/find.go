package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/usage"
)

// Known reports whether there is anything of a scope: the limits name it, or it is a member of a pool, tasks wait in it or below it,
// something was spent from it in the last 31 days or counts under a rule of its own, or its API paused it, or its breaker is open. It
// costs five round trips, and none for a scope that the limits
// name. Its errors are those of Level.
func (s *Service) Known(ctx context.Context, scope string, limits Limits) (bool, error) {
	if s.named().has(scope) || s.isMember(scope) {
		return true, nil
	}
	l, err := s.Level(ctx, scope, limits)
	if err != nil {
		return false, err
	}
	counts := slices.ContainsFunc(l.Rules, func(r Rule) bool { return r.RuleScope == scope && r.Used > 0 })
	paused := slices.ContainsFunc(l.Upstream.Pauses, func(p throttle.UpstreamPause) bool { return p.Scope == scope })
	broken := slices.ContainsFunc(l.Upstream.Breakers, func(b throttle.UpstreamBreaker) bool { return b.Scope == scope })
	if l.Waiting > 0 || counts || paused || broken {
		return true, nil
	}
	return usage.Used(ctx, s.rdb, usage.Config{Prefix: s.prefix}, scope)
}

const (
	// mostNear is how many scopes Near returns, and mostCompared how many names it compares.
	mostNear, mostCompared = 100, 20_000
	// nearProviders is in how many providers it looks for a name, with a command each, and nearBranches how many scopes of the provider
	// it reads that the name begins with.
	nearProviders, nearBranches = 30, 1000
)

// Near returns scopes that a name may have meant, the likeliest first, 100 at most: those with that name below some provider, those that
// are a typing mistake away, and those whose names contain it. The caller checks who may see them. The error is Redis's.
func (s *Service) Near(ctx context.Context, name string) ([]string, error) {
	providers, err := s.Providers(ctx)
	if err != nil {
		return nil, err
	}
	var all []string
	if provider := providerOf(name); slices.Contains(providers, provider) {
		out, err := s.Outline(ctx, provider, nearBranches)
		if err != nil {
			return nil, err
		}
		for _, b := range out.Branches {
			all = append(all, b.Scope)
		}
	}
	for i, provider := range providers {
		all = append(all, provider)
		all = append(all, s.named().byProvider[provider]...)
		if i >= nearProviders {
			continue
		}
		below, err := inspect.Of(s.limiter.Waitlist()).WaitingIn(ctx, provider, provider+"/"+name)
		if err == nil && below[0].Tasks > 0 {
			all = append(all, below[0].Scope)
		}
	}
	ranks := map[string]int{}
	for _, scope := range all[:min(len(all), mostCompared)] {
		if rank := nearness(scope, name); rank > 0 && scope != name {
			ranks[scope] = rank
		}
	}
	list := slices.SortedFunc(maps.Keys(ranks), func(a, b string) int { return cmp.Or(cmp.Compare(ranks[a], ranks[b]), cmp.Compare(a, b)) })
	return list[:min(len(list), mostNear)], nil
}

// nearness ranks how likely a name meant a scope: 1 is the likeliest, 0 is not at all.
func nearness(scope, name string) int {
	scope, name = strings.ToLower(scope), strings.ToLower(name)
	last := func(text string) string { return text[strings.LastIndex(text, "/")+1:] }
	switch {
	case scope == name, strings.HasSuffix(scope, "/"+name):
		return 1
	case diag.Nearest(last(name), []string{last(scope)}) != "":
		return 2
	case strings.Contains(scope, name):
		return 3
	}
	return 0
}

// mostSearched is how many waiting tasks are searched for one without a scope in its headers: some seconds' worth.
const mostSearched = 100_000

// placeOf searches the waiting tasks for one of an asynq queue, and returns its scope.
func (s *Service) placeOf(ctx context.Context, queue, id string) (scope string, err error) {
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return "", err
	}
	searched := 0
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		tasks, err := inspect.Of(s.limiter.Waitlist()).Tasks(provider).Next(ctx, mostSearched-searched)
		if err != nil {
			return "", err
		}
		for _, t := range tasks {
			if t.Queue == queue && t.ID == id {
				return t.Scope, nil
			}
		}
		if searched += len(tasks); searched >= mostSearched {
			break
		}
	}
	return "", nil
}
