package control

import (
	"slices"
	"strings"
	"sync"

	"github.com/headway-go/headway/throttle/policy"
)

// named are the scopes that a policy names, by name. "*" stands for no single name.
type named struct {
	of         *policy.Policy
	byProvider map[string][]string
	paused     []string // those with a pause of their own
}

// namedOf keeps the names of one policy: a tree of 100,000 scopes is walked once for each change of the limits.
type namedOf struct {
	mu   sync.Mutex
	last *named
}

// named returns the scopes that the limits name. It does no I/O.
func (s *Service) named() *named {
	p := s.limiter.Policy()
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	if s.names.last == nil || s.names.last.of != p {
		n := &named{of: p, byProvider: map[string][]string{}}
		_, tree := p.Limits()
		for provider, config := range tree {
			if provider != "*" {
				n.add(provider, provider, config)
				slices.Sort(n.byProvider[provider])
			}
		}
		slices.Sort(n.paused)
		s.names.last = n
	}
	return s.names.last
}

func (n *named) add(provider, at string, config policy.ScopeConfig) {
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

// pauses reports whether a scope has a pause of its own.
func (n *named) pauses(scope string) bool {
	_, is := slices.BinarySearch(n.paused, scope)
	return is
}

func (n *named) has(scope string) bool {
	provider, _, _ := strings.Cut(scope, "/")
	_, is := slices.BinarySearch(n.byProvider[provider], scope)
	return is
}
