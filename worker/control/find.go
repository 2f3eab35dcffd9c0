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

// KnownCost is the most Redis commands that Known sends.
const KnownCost = LevelCost + 1

// Known reports whether there is anything of a scope: the limits name it, tasks wait in it or below it, something was spent from it in
// the last 31 days or counts under a rule of its own, or its API paused it. It costs four round trips, and none for a scope that the limits
// name. Its errors are those of Level.
func (s *Service) Known(ctx context.Context, scope string, limits Limits) (bool, error) {
	if s.named().has(scope) {
		return true, nil
	}
	l, err := s.Glance(ctx, scope, limits)
	if err != nil || l.Waiting > 0 {
		return err == nil, err
	}
	own := slices.ContainsFunc(l.Rules, func(r Rule) bool { return r.RuleScope == scope && r.Used > 0 })
	paused := slices.ContainsFunc(l.Upstream.Pauses, func(p throttle.UpstreamPause) bool { return p.Scope == scope })
	if own || paused {
		return true, nil
	}
	return usage.Used(ctx, s.rdb, usage.Config{Prefix: s.prefix}, scope)
}

const (
	// mostNear is how many scopes Near returns, mostCompared how many names it compares, and mostNearProviders in how many providers
	// it looks for a name, with a command each.
	mostNear, mostCompared, mostNearProviders = 100, 20_000, 30
	// nearBranches is how many scopes of a provider it reads.
	nearBranches = 1000
	// NearCost is the most Redis commands that Near sends.
	NearCost = mostNearProviders + 3
)

// Near returns scopes that a name may have meant, the likeliest first, 100 at most: those with that name below some provider, those that
// are a typing mistake away, and those whose names contain it. The caller checks who may see them. The error is Redis's.
func (s *Service) Near(ctx context.Context, name string) ([]string, error) {
	active, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	rank, named := map[string]int{}, s.named()
	for provider := range named.byProvider {
		active[provider] = time.Time{}
	}
	var all []string
	first, _, _ := strings.Cut(name, "/")
	if _, is := active[first]; is {
		out, err := s.Outline(ctx, first, nearBranches)
		if err != nil {
			return nil, err
		}
		for _, b := range out.Branches {
			all = append(all, b.Scope)
		}
	}
	for i, provider := range slices.Sorted(maps.Keys(active)) {
		all = append(all, provider)
		all = append(all, named.byProvider[provider]...)
		if i >= mostNearProviders {
			continue
		}
		below, err := inspect.Of(s.limiter.Waitlist()).WaitingIn(ctx, provider, provider+"/"+name)
		if err == nil && below[0].Tasks > 0 {
			all = append(all, below[0].Scope)
		}
	}
	for _, scope := range all[:min(len(all), mostCompared)] {
		if r := nearness(scope, name); r > 0 && scope != name {
			rank[scope] = r
		}
	}
	list := slices.SortedFunc(maps.Keys(rank), func(a, b string) int { return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a, b)) })
	return list[:min(len(list), mostNear)], nil
}

// nearness is how likely a scope was meant by a name: 1 for the likeliest, 0 for not at all.
func nearness(scope, name string) int {
	scope, name = strings.ToLower(scope), strings.ToLower(name)
	switch {
	case scope == name, strings.HasSuffix(scope, "/"+name):
		return 1
	case diag.Nearest(name, []string{scope}) != "":
		return 2
	case diag.Nearest(name[strings.LastIndex(name, "/")+1:], []string{scope[strings.LastIndex(scope, "/")+1:]}) != "":
		return 3
	case strings.Contains(scope, name):
		return 4
	case strings.HasPrefix(name, scope+"/"):
		return 5
	}
	return 0
}
