package policystore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Pause pauses scope, with "*" for every name, and all scopes below it: no task that spends from them
// starts, from when the change is in force until Edit.For is over, or permanently without it. Tasks
// wait in their order, and continue when the pause ends. A scope that is paused already gets a new
// end. When a temporary pause is over, the file's value applies again, or an earlier resumption. The
// scope needs no rules. The error is ErrUnchanged if it is paused permanently already, a
// *ConflictError, a *policy.Error or *policy.ScopeError for an invalid scope, or those of Store. Costs
// some round trips.
func (s *Store) Pause(ctx context.Context, e Edit, scope string) (Made, error) {
	return s.pausing(ctx, e, scope, func(v *draft, is policy.ScopeConfig, now time.Time) error {
		if is.Pause == policy.PauseOn && is.PausedUntil.IsZero() && e.For == 0 {
			return ErrUnchanged
		}
		p := Pause{Scope: scope, Since: now, UpdatedBy: e.By, UpdatedUser: v.User, UpdatedAt: now, Reason: e.Reason}
		if was, is := v.Paused(scope, now); is && was.Resumed {
			p.ThenResumed = e.For > 0
		} else if is {
			p.Since, p.ThenResumed = was.Since, was.ThenResumed && e.For > 0
		}
		v.Change = "pause " + scope
		if e.For > 0 {
			p.Until = now.Add(e.For)
			v.Change += " for " + e.For.String()
		}
		v.pause(p)
		return nil
	})
}

// NotPausedError is the error for a scope that is not paused itself, so that it cannot be resumed.
type NotPausedError struct {
	Scope string
	Above string // the level above that is paused, empty for none
}

func (e *NotPausedError) Error() string {
	text := fmt.Sprintf("policystore: %s is not paused", e.Scope)
	if e.Above != "" {
		text += fmt.Sprintf(" itself; %s is, and all that lies below it", e.Above)
	}
	return text
}

// Resume ends the pause of scope, including the file's, and for one name that of "*". A pause above or
// below it stays. Its errors are those of Pause, and a *NotPausedError.
func (s *Store) Resume(ctx context.Context, e Edit, scope string) (Made, error) {
	e.For = 0
	return s.pausing(ctx, e, scope, func(v *draft, _ policy.ScopeConfig, now time.Time) error {
		policy, err := v.draftPolicy(now)
		if err != nil {
			return err
		}
		if above, paused := pausedAt(policy, scope); !paused {
			return &NotPausedError{scope, above}
		}
		v.Change = "resume " + scope
		v.unpause(scope)
		if policy, err = v.draftPolicy(now); err != nil {
			return err
		}
		if _, still := pausedAt(policy, scope); still { // the file or "*" says so
			v.pause(Pause{Scope: scope, Resumed: true, Since: now, UpdatedBy: e.By, UpdatedUser: v.User, UpdatedAt: now, Reason: e.Reason})
		}
		return nil
	})
}

// draftPolicy is what a draft comes to over the limits that it began with.
func (v *draft) draftPolicy(now time.Time) (*policy.Policy, error) {
	p, _, err := v.Version.policy(v.base, now)
	return p, err
}

// pausedAt reports whether a policy pauses a scope, or a place such as payments/*, and otherwise which
// level above it is paused.
func pausedAt(p *policy.Policy, scope string) (above string, paused bool) {
	at, err := policy.ParseScope(scope)
	if err != nil {
		_, limits := p.Limits()
		return "", nodeAt(limits, strings.Split(scope, "/")).Pause == policy.PauseOn
	}
	bounds, _ := p.Match(at) // no rule is no pause
	for _, b := range bounds {
		if b.Paused() && b.Scope == at {
			return "", true
		}
		if b.Paused() {
			above = b.Scope.String()
		}
	}
	return above, false
}

// pausing changes the pause of one scope. If another change of it is made meanwhile, nothing is
// changed.
func (s *Store) pausing(ctx context.Context, e Edit, scope string, change func(v *draft, is policy.ScopeConfig, now time.Time) error) (Made, error) {
	var made Made
	if err := e.checkFor(); err != nil {
		return made, err
	}
	if scope == "" {
		return made, &policy.ScopeError{Scope: scope, Reason: emptyScope}
	}
	var seen Pause // as it was when this change began
	first := true
	v, err := s.edit(ctx, e, func(v *draft, policy *policy.Policy, now time.Time) error {
		made.PauseBefore, made.PolicyBefore = nil, policy
		was, said := v.Paused(scope, now)
		if said {
			made.PauseBefore = new(was)
		}
		if !first && was != seen {
			return &ConflictError{Now: v.Version}
		}
		first, seen = false, was
		_, limits := policy.Limits()
		return change(v, nodeAt(limits, strings.Split(scope, "/")), now)
	})
	return made.of(v, err)
}
