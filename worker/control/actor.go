package control

import (
	"slices"
	"strings"
)

// Role is what an actor may do: see docs/page.md#who-may-what.
type Role int

// The roles. Each may do what those before it may.
const (
	RoleNone   Role = iota // nothing
	RoleViewer             // see
	RoleOwner              // as a viewer, and act and change in the scopes that it owns and below them
	RoleAdmin              // everything
)

var roleNames = []string{"none", "viewer", "owner", "admin"}

// String returns the role as configurations and refusals name it.
func (r Role) String() string {
	if r < 0 || int(r) >= len(roleNames) {
		return roleNames[RoleNone]
	}
	return roleNames[r]
}

// ParseRole returns the role of a name, and whether there is one.
func ParseRole(name string) (Role, bool) {
	i := slices.Index(roleNames, name)
	return Role(max(0, i)), i >= 0
}

// Actor is a person or program that asks or acts.
type Actor struct {
	// Name is the author in the history. Required.
	Name string
	// Groups are compared with the owner of a scope; see Is.
	Groups []string
	Role   Role
	// Scopes are the scopes that the actor may see, with all below them: names, or "*" for every name.
	// Empty means all. An owner also sees its own scopes.
	Scopes []string
	// Via is the actor's way in, such as "page" or "cli". The history and the audit line have it.
	Via string
}

// Is reports whether a name in the limits or in a list of rights stands for the actor: user:anna for the
// person anna, and any other name for a group. A person named as a group is not that group.
func (a Actor) Is(name string) bool {
	if person, is := strings.CutPrefix(name, "user:"); is {
		return person != "" && person == a.Name
	}
	return name != "" && slices.Contains(a.Groups, name)
}

// seesAll reports whether the actor may see every scope.
func (a Actor) seesAll() bool { return a.Role == RoleAdmin || a.Role > RoleNone && len(a.Scopes) == 0 }

// sees reports whether a scope, or a place such as payments/*, is one of Scopes or below one.
func (a Actor) sees(place string) bool {
	return slices.ContainsFunc(a.Scopes, func(scope string) bool { return covers(scope, place) })
}

// covers reports whether a scope is at or below a place of the limits, such as payments/*.
func covers(place, scope string) bool {
	for more, has := true, true; more; {
		if !has {
			return false
		}
		var at, name string
		at, place, more = strings.Cut(place, "/")
		name, scope, has = strings.Cut(scope, "/")
		if at != "*" && at != name {
			return false
		}
	}
	return true
}
