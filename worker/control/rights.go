package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
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
	Name   string   // the author in the history; required
	Groups []string // compared with the owner of a scope; see Is
	Role   Role
	// Scopes are the scopes that the actor may see, with all below them: names, or "*" for every name.
	// Empty means all. An owner also sees its own scopes.
	Scopes []string
	Via    string // the actor's way in, such as "page" or "cli", for the history and the audit line
}

// Is reports whether a name in the limits or in a list of rights stands for the actor: user:anna for the person anna, and any other
// name for a group.
func (a Actor) Is(name string) bool {
	if person, is := strings.CutPrefix(name, "user:"); is {
		return person != "" && person == a.Name
	}
	return name != "" && slices.Contains(a.Groups, name)
}

// seesAll reports whether the actor may see every scope.
func (a Actor) seesAll() bool { return a.Role == RoleAdmin || a.Role > RoleNone && len(a.Scopes) == 0 }

var covers = policy.Within

// Verb is something that an actor asks for or does.
type Verb string

// The verbs.
const (
	VerbSee      Verb = "see"
	VerbPayload  Verb = "payload"
	VerbPause    Verb = "pause"
	VerbDrain    Verb = "drain" // pause, and then wait until nothing runs
	VerbResume   Verb = "resume"
	VerbSet      Verb = "set"
	VerbAssign   Verb = "assign"
	VerbTier     Verb = "tier"
	VerbRemove   Verb = "remove"
	VerbUnset    Verb = "unset"
	VerbReset    Verb = "reset"
	VerbOpen     Verb = "open" // its breaker
	VerbClose    Verb = "close"
	VerbRollback Verb = "rollback"
	VerbImport   Verb = "import"
	VerbRun      Verb = "run"
	VerbMove     Verb = "move"
	VerbCancel   Verb = "cancel"
	VerbClear    Verb = "clear"
	VerbPriority Verb = "priority"
)

// rights is the only table of rights: who may do each verb, and the words for it in a refusal. An admin may do it everywhere, a viewer
// sees what its Scopes name, and an owner does everything else in the scopes that it owns and below them. A verb that is not here is
// refused to all.
var rights = map[Verb]struct {
	least Role
	words string
}{
	VerbSee:      {RoleViewer, "see"},
	VerbPayload:  {RoleOwner, "read the payloads of"},
	VerbPause:    {RoleOwner, "pause"},
	VerbDrain:    {RoleOwner, "drain"},
	VerbResume:   {RoleOwner, "resume"},
	VerbSet:      {RoleOwner, "set rules of"},
	VerbAssign:   {RoleAdmin, "assign fields of"}, // such as the owner, and the share of what scopes share
	VerbTier:     {RoleAdmin, "set the tier of"},
	VerbRemove:   {RoleOwner, "remove rules of"},
	VerbUnset:    {RoleOwner, "undo changes of"},
	VerbReset:    {RoleOwner, "reset"},
	VerbOpen:     {RoleOwner, "open the breaker of"},
	VerbClose:    {RoleOwner, "close the breaker of"},
	VerbRollback: {RoleOwner, "roll back"}, // at each scope that it changes
	VerbImport:   {RoleAdmin, "import into"},
	VerbRun:      {RoleOwner, "run tasks of"},
	VerbMove:     {RoleOwner, "move tasks of"}, // at both the scope that they leave and the one that they enter
	VerbCancel:   {RoleOwner, "cancel tasks of"},
	VerbClear:    {RoleOwner, "clear"},
	VerbPriority: {RoleOwner, "change the priority of tasks of"},
}

// may reports whether the role has the right to a verb at some place.
func (r Role) may(verb Verb) bool {
	right, is := rights[verb]
	return is && r >= right.least && r <= RoleAdmin
}

// may reports whether the actor may do a verb at a place whose levels have some owners.
func (a Actor) may(verb Verb, place string, owners []string) bool {
	owns := a.Role == RoleOwner && slices.ContainsFunc(owners, a.Is)
	switch {
	case !a.Role.may(verb):
		return false
	case a.Role == RoleAdmin, owns:
		return true
	case verb == VerbSee:
		return len(a.Scopes) == 0 || slices.ContainsFunc(a.Scopes, func(scope string) bool { return covers(scope, place) })
	}
	return false
}

// May returns a *ForbiddenError if an actor has no right to a verb at a scope, or at a place such as payments/*; an empty place is all
// limits. A change of the limits at payments/* also reaches each name of its own, such as payments/acme, so an owner needs the right
// there too. A change of tasks does not: each task is checked at its scope. May goes by the limits in force here, and does no I/O.
func (s *Service) May(actor Actor, verb Verb, place string) error {
	if err := s.mayAt(actor, verb, place); err != nil || actor.Role != RoleOwner || verb == VerbSee || slices.Contains(taskVerbs, verb) {
		return err
	}
	e := &ForbiddenError{Actor: actor.Name, Verb: verb, Scope: place}
	for _, named := range s.limiter.Policy().Named(place) {
		if s.mayAt(actor, verb, named) == nil {
			continue
		}
		if s.mayAt(actor, VerbSee, named) == nil {
			e.Covers = append(e.Covers, named)
		} else {
			e.Hidden = true
		}
	}
	if len(e.Covers) > 0 || e.Hidden {
		return e
	}
	return nil
}

// MaySomewhere returns a *ForbiddenError if the actor's role has no right to a verb at any place.
func (s *Service) MaySomewhere(actor Actor, verb Verb) error {
	if actor.Role.may(verb) {
		return nil
	}
	return &ForbiddenError{Actor: actor.Name, Verb: verb, Need: RoleAdmin}
}

// mayAt is May for the place alone, without the names that it covers.
func (s *Service) mayAt(actor Actor, verb Verb, place string) error {
	var owners []string
	if place != "" {
		owners = s.limiter.Policy().Owners(place)
	}
	if actor.may(verb, place, owners) {
		return nil
	}
	e := &ForbiddenError{Actor: actor.Name, Verb: verb, Scope: place, Need: cmp.Or(rights[verb].least, RoleAdmin)}
	if e.Hidden = !actor.may(VerbSee, place, owners); len(owners) > 0 && !e.Hidden {
		e.Owner = owners[len(owners)-1]
	}
	return e
}

// ForbiddenError is the error for an actor that lacks the right to what it asks for.
type ForbiddenError struct {
	Actor string
	Verb  Verb
	Scope string // the place, as in the limits; empty for all limits
	// Owner is the owner of the scope, if it has one and the actor may see it. Hidden says that the actor may not.
	Owner  string
	Hidden bool
	// Covers are the scopes that a place such as payments/* covers and to which the actor has no right, as far as it may see them.
	Covers []string
	// Need is the least role that has the right. RoleNone means that the actor lacks the right only to scopes that Scope covers.
	Need Role
}

func (e *ForbiddenError) Error() string {
	place := "all limits"
	if e.Scope != "" {
		place = quote(e.Scope)
	}
	text := e.Actor + " may not " + cmp.Or(rights[e.Verb].words, string(e.Verb)) + " " + place
	switch {
	case e.Need == RoleNone:
		return fmt.Sprintf("%s: it also covers %s, and these are not %s's", text, e.covered(), e.Actor)
	case e.Verb == VerbSee, e.Hidden:
		return text
	case e.Need == RoleAdmin || e.Scope == "":
		return text + ": only an admin may"
	case e.Owner == "":
		return text + ": it has no owner, and only an admin may"
	}
	return text + ": its owner is " + quote(e.Owner)
}

// covered lists what the place covers and the actor may not change.
func (e *ForbiddenError) covered() string {
	const most = 5
	var names []string
	for _, scope := range e.Covers[:min(most, len(e.Covers))] {
		names = append(names, quote(scope))
	}
	if more := len(e.Covers) - most; more > 0 {
		names = append(names, counted(int64(more), "more scope", "more scopes"))
	}
	if e.Hidden {
		names = append(names, "scopes that "+e.Actor+" may not see")
	}
	return strings.Join(names, ", ")
}
