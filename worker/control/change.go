package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Change is a change of the limits that an actor asks for. Preview shows its effect, and Apply makes it.
type Change struct {
	// Verb is pause, drain (which only pauses), resume, set, assign, tier, remove, unset, reset, open or close (a breaker), rollback or
	// import.
	Verb Verb
	// Scope is the place in the limits, with "*" for every name, and Rule the rule there. Rollback and import have neither. Without
	// Rule, unset and reset mean all rules; without Scope, unset means everything.
	Scope, Rule string
	// Fields are the fields that set writes, named as in limits.yaml.
	Fields   map[string]string
	Assigned policystore.Assigned // what assign writes
	Tier     string               // what tier writes, "" to remove it
	Version  int64                // to which rollback returns
	// Policy is the policy that import writes, and From the name of its file. Replace undoes all other changes.
	Policy  *policy.Policy
	From    string
	Replace bool

	Reason string // for the history
	// For is how long pause, drain, set and remove last. Zero means permanently. Of open it is how long the first probe waits, and zero
	// means as the limits have it.
	For time.Duration
	// IfVersion refuses the change if the limits have another version by then; see policystore.Edit.
	IfVersion int64
	// SeenVersion is the version that the actor has seen. It refuses the change if something on the path of Scope was changed since,
	// and allows other edits. For rollback, unset and import it means the same as IfVersion.
	SeenVersion int64
	// Force changes a scope that the limits do not name, and that no task can spend from.
	Force bool
}

// errNoStore is the error of a change if no limits are kept in Redis.
var errNoStore = errors.New("these limits come from a file, and only that can change them")

// Apply makes a change, and logs it. The error is a *ForbiddenError, an *UnknownScopeError, or one of the policystore.Store's method
// for the verb. Costs some round trips.
func (s *Service) Apply(ctx context.Context, actor Actor, c Change) (made policystore.Made, err error) {
	if s.store == nil {
		return made, errNoStore
	}
	if made, err = s.change(ctx, actor, c, false); err == nil { // ErrUnchanged comes with the state that stands
		s.audit(ctx, actor, c, made)
	}
	return made, err
}

// change checks the actor's rights and makes a change. If dry is true, it only works out its effect.
func (s *Service) change(ctx context.Context, actor Actor, c Change, dry bool) (made policystore.Made, err error) {
	edit := policystore.Edit{By: actor.Name, Reason: c.Reason, IfVersion: max(c.IfVersion, c.SeenVersion), For: c.For, Via: actor.Via, DryRun: dry}
	if c.Verb == VerbRollback || c.Verb == VerbUnset {
		if edit.IfVersion, err = s.checkDifferences(ctx, actor, c, edit); err != nil {
			return made, err
		}
	} else if err := s.May(actor, c.Verb, c.Scope); err != nil {
		return made, err
	} else if edit.IfVersion, err = s.baseVersion(ctx, c); err != nil {
		return made, err
	}
	if err := s.checkNamed(ctx, c); err != nil {
		return made, err
	}
	return s.edit(ctx, edit, c)
}

// baseVersion returns the version over which a change is made, 0 for any. The error is a *ConflictError if the
// actor has seen another state of the scope's path.
func (s *Service) baseVersion(ctx context.Context, c Change) (version int64, err error) {
	if c.SeenVersion == 0 || c.Verb == VerbImport {
		return max(c.IfVersion, c.SeenVersion), nil
	}
	now, err := s.store.Current(ctx)
	if err != nil || now.Number == c.SeenVersion {
		return c.SeenVersion, err
	}
	since, err := s.store.Compare(ctx, c.SeenVersion, now.Number)
	if err != nil {
		return 0, err
	}
	for _, d := range since {
		if d.Rule == policystore.UnmatchedField || sharePath(c.Scope, d.Scope) {
			return 0, &policystore.ConflictError{Want: c.SeenVersion, Now: now}
		}
	}
	return now.Number, nil
}

// sharePath reports whether one of two places of the limits is at or below the other for some scope.
func sharePath(a, b string) bool {
	as, bs := policy.SplitPlace(a), policy.SplitPlace(b)
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] && policy.OneName(as[i]) && policy.OneName(bs[i]) {
			return false
		}
	}
	return true
}

// checkDifferences checks an actor's rights to all that a rollback or an unset changes, which is more than its scope names. It
// returns the version over which the change must be made, 0 for any.
func (s *Service) checkDifferences(ctx context.Context, actor Actor, c Change, edit policystore.Edit) (version int64, err error) {
	if actor.Role == RoleAdmin {
		return edit.IfVersion, nil
	}
	if actor.Role < RoleOwner || c.Verb == VerbUnset {
		if err := s.May(actor, c.Verb, c.Scope); err != nil {
			return 0, err
		}
	}
	edit.DryRun = true
	made, err := s.edit(ctx, edit, c)
	if err != nil {
		return 0, err
	}
	for _, d := range made.Differences {
		if s.May(actor, VerbSee, d.Scope) != nil { // its name is not for the actor
			return 0, &ForbiddenError{Actor: actor.Name, Verb: c.Verb, Scope: c.Scope, Hidden: true}
		}
		if err := s.May(actor, verbOf(c.Verb, d.Rule), d.Scope); err != nil {
			return 0, err
		}
	}
	return made.Version.Number - 1, nil
}

// verbOf returns the verb to which an actor needs the right to change a rule or a field: assign for owner: and similar fields.
func verbOf(verb Verb, rule string) Verb {
	if rule != policystore.PausedField && (strings.HasSuffix(rule, ":") || rule == policystore.UnmatchedField) {
		return VerbAssign
	}
	return verb
}

func (s *Service) edit(ctx context.Context, edit policystore.Edit, c Change) (made policystore.Made, err error) {
	switch c.Verb {
	case VerbPause, VerbDrain:
		return s.store.Pause(ctx, edit, c.Scope)
	case VerbResume:
		return s.store.Resume(ctx, edit, c.Scope)
	case VerbSet:
		return s.store.Set(ctx, edit, c.Scope, c.Rule, c.Fields)
	case VerbAssign:
		return s.store.Assign(ctx, edit, c.Scope, c.Assigned)
	case VerbTier:
		return s.store.SetTiers(ctx, edit, map[string]string{c.Scope: c.Tier})
	case VerbRemove:
		return s.store.Remove(ctx, edit, c.Scope, c.Rule)
	case VerbUnset:
		return s.store.Unset(ctx, edit, c.Scope, c.Rule)
	case VerbReset:
		return s.store.Reset(ctx, edit, s.limiter, c.Scope, c.Rule)
	case VerbOpen:
		return s.store.OpenBreaker(ctx, edit, s.limiter, c.Scope)
	case VerbClose:
		return s.store.CloseBreaker(ctx, edit, s.limiter, c.Scope)
	case VerbRollback:
		return s.store.Rollback(ctx, edit, c.Version)
	case VerbImport:
		return s.store.Import(ctx, edit, c.Policy, c.From, c.Replace)
	}
	return made, fmt.Errorf("limits cannot be changed by %q", c.Verb)
}

// UnknownScopeError is the error for a scope whose first name is not in the limits and is probably mistyped.
type UnknownScopeError struct {
	Name string
	Near string // the name that is probably meant, empty if none is
}

func (e *UnknownScopeError) Error() string {
	if e.Near != "" {
		return fmt.Sprintf("the limits do not name %s; did you mean %s?", quote(e.Name), quote(e.Near))
	}
	return fmt.Sprintf("the limits do not name %s, and no task can spend from it", quote(e.Name))
}

// checkNamed refuses a scope whose first name is not in the limits, unless Force is set. If names may be
// new, it refuses only a name that is similar to another.
func (s *Service) checkNamed(ctx context.Context, c Change) error {
	mayBeNew := c.Verb == VerbSet || c.Verb == VerbAssign
	if c.Force || !mayBeNew && c.Verb != VerbPause && c.Verb != VerbDrain {
		return nil
	}
	p, err := s.store.Now(ctx)
	if errors.Is(err, policystore.ErrNone) { // the names are not known yet
		return nil
	}
	if err != nil {
		return err
	}
	_, tree := p.Limits()
	name := providerOf(c.Scope)
	if _, all := tree["*"]; all || p.Names(name) {
		return nil
	}
	if near := diag.Nearest(name, slices.Sorted(maps.Keys(tree))); near != "" || !mayBeNew {
		return &UnknownScopeError{Name: name, Near: near}
	}
	return nil
}
