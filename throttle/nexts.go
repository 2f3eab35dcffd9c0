package throttle

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// nextSets keeps, by provider, the scopes that a dispatch brings along.
type nextSets struct {
	mu     sync.Mutex
	byName map[string]*nextScopes
}

func (s *nextSets) of(provider string) *nextScopes {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.byName[provider]
	if next == nil {
		if s.byName == nil || len(s.byName) >= maxPlans {
			s.byName = map[string]*nextScopes{}
		}
		next = &nextScopes{below: map[string][]string{}, missed: map[string]int{}, names: firstNamed}
		s.byName[provider] = next
	}
	return next
}

// nextScopes are the scopes of a provider that a dispatch brings along, since it can serve no others: those whose turns
// are next, as far as the last reply told. That names the first two levels; what was met below is remembered.
type nextScopes struct {
	mu     sync.Mutex
	list   []string
	below  map[string][]string // by provider and tenant: scopes further below that were met, the last at the end
	missed map[string]int      // those that were missed lately, and how many calls still bring them along
	now    int64               // when the last call was, by the server's clock
	at     time.Time           // the same by ours
	due    int64               // when the first node is to be looked at, by the server's clock
	until  time.Time           // when that has come
	parks  bool                // somebody is parked
	vain   time.Time           // when the tree was last made anew
	names  int                 // how many scopes a reply is to name
}

// overdueAfter is when a task that was granted is not on its way any more: STALE of lua/include/fairshare/flight.lua.
const overdueAfter = 3 * time.Second

const (
	// maxBelow is how many scopes below one tenant are brought along when its turn is next, and maxTenants of how many
	// they are remembered.
	maxBelow   = 4
	maxTenants = 20_000
	// bringsAlong is with how many calls a scope is brought along that was missed: who waits there may be left to others,
	// or come up again soon. There are at most so many of them.
	bringsAlong = 8
	mostBrought = 256
	// firstNamed, leastNamed and mostNamed are how many scopes a reply names that may be next. Other processes serve some of
	// them before the next call, so it follows from what calls have missed: a call that misses any is made twice, and costs as
	// much more as some hundred scopes that are brought along for nothing.
	firstNamed, leastNamed, mostNamed = 32, 8, 256
)

// named is how many scopes the next reply is to name.
func (s *nextScopes) named() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names
}

// looked notes what a dispatch told of those who wait.
func (s *nextScopes) looked(now, due int64, told Dispatched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.at = now, time.Now()
	s.due, s.until, s.parks = due, time.Now().Add(told.Next), told.Parked
}

// quiet returns what the last dispatch told to be next, until when it is yet to come, and whether somebody was parked;
// and before when those were granted who are overdue by now.
func (s *nextScopes) quiet() (due, overdue int64, until time.Time, parks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due, s.now + (time.Since(s.at) - overdueAfter).Microseconds(), s.until, s.parks
}

// known returns the scopes that the next call brings along.
func (s *nextScopes) known() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// add brings scopes along with the next call.
func (s *nextScopes) add(scopes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range scopes {
		if !slices.Contains(s.list, scope) {
			s.list = append(s.list, scope)
		}
	}
}

// next notes who is next: the nodes that the reply named, with what is known below them, and those that it missed, but for
// those that it granted a start: others are before them now.
func (s *nextScopes) next(near, missing []string, granted []Granted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range granted {
		delete(s.missed, granted[i].Scope)
	}
	if len(missing) > 0 {
		s.names = min(s.names*5/4, mostNamed)
	} else if len(granted) > 0 {
		s.names = max(s.names-(s.names+15)/16, leastNamed)
	}
	for _, scope := range missing {
		s.meet(scope)
		s.missed[scope] = bringsAlong
	}
	s.list = s.list[:0]
	for scope, calls := range s.missed {
		s.list = append(s.list, scope)
		if s.missed[scope] = calls - 1; calls <= 1 || len(s.list) > mostBrought {
			delete(s.missed, scope)
		}
	}
	for _, scope := range near {
		s.list = append(s.list, scope)
		s.list = append(s.list, s.below[scope]...)
	}
	slices.Sort(s.list)
	s.list = slices.Compact(s.list)
}

// meet remembers a scope that lies further below a tenant.
func (s *nextScopes) meet(scope string) {
	names := strings.SplitN(scope, "/", 3)
	if len(names) < 3 {
		return
	}
	tenant := names[0] + "/" + names[1]
	its := s.below[tenant]
	if i := slices.Index(its, scope); i >= 0 {
		its = slices.Delete(its, i, i+1)
	}
	its = append(its, scope)
	if len(s.below) >= maxTenants {
		clear(s.below)
	}
	s.below[tenant] = its[max(0, len(its)-maxBelow):]
}
