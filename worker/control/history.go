package control

import (
	"slices"

	"github.com/headway-go/headway/throttle/policystore"
)

// SeenChange is a version of the limits, reduced to what an actor may see of it.
type SeenChange struct {
	policystore.Change
	// Hidden is the number of differences and resets in scopes that the actor may not see. If it is not
	// zero, or if the differences are not known, the version has neither its line nor its reason: both may
	// name what is hidden.
	Hidden int
}

// SeenChange reduces a version to what an actor may see of it. It returns false if that is nothing.
func (s *Service) SeenChange(who Actor, c policystore.Change) (seen SeenChange, some bool) {
	if who.seesAll() {
		return SeenChange{Change: c}, true
	}
	seen.Change = c
	hidden := func(scope string) bool {
		if s.May(who, VerbSee, scope) == nil {
			return false
		}
		seen.Hidden++
		return true
	}
	seen.Differences = slices.DeleteFunc(slices.Clone(c.Differences), func(d policystore.Difference) bool { return hidden(d.Scope) })
	seen.Version.Resets = slices.DeleteFunc(slices.Clone(c.Version.Resets), func(r policystore.Reset) bool { return hidden(r.Scope) })
	if seen.Hidden > 0 || !c.Known {
		seen.Version.Change, seen.Version.Reason = "changed limits", ""
	}
	return seen, seen.Hidden == 0 || len(seen.Differences)+len(seen.Version.Resets) > 0
}

// SeenConflict is an error for a change that another one preceded, without what the actor may not see of
// the other.
func (s *Service) SeenConflict(who Actor, e *policystore.ConflictError) *policystore.ConflictError {
	seen, _ := s.SeenChange(who, policystore.Change{Version: e.Now})
	return &policystore.ConflictError{Want: e.Want, Now: seen.Version}
}
