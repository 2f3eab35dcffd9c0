package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/headway-go/headway/throttle/policystore"
)

// audit logs a change of the limits with its actor: one line for each rule that changed.
func (s *Service) audit(ctx context.Context, actor Actor, c Change, made policystore.Made) {
	differences := made.Differences
	for _, t := range made.Version.Tiers {
		differences = append(differences, policystore.Difference{Scope: t.Scope, Rule: "tier", Before: t.Before, After: t.Tier})
	}
	if len(differences) == 0 {
		differences = []policystore.Difference{{Scope: c.Scope, Rule: c.Rule}}
	}
	for _, d := range differences {
		s.log.LogAttrs(ctx, slog.LevelInfo, "limits changed",
			slog.String("who", actor.Name), slog.String("via", actor.Via), slog.String("verb", string(c.Verb)),
			slog.String("scope", d.Scope), slog.String("rule", d.Rule), slog.String("before", d.Before), slog.String("after", d.After),
			slog.String("reason", c.Reason), slog.Int64("version", made.Version.Number))
	}
}

// A record names the first mostNamed tasks, and mostScopes scopes.
const (
	mostNamed  = 10
	mostScopes = 20
)

// auditTasks records a change of tasks in the log and in Redis. It is in the log alone without a Store, and if the Redis user may not
// change the limits.
func (s *Service) auditTasks(ctx context.Context, actor Actor, c TaskChange, done TasksDone) error {
	a := actionOf(actor, c, done)
	s.log.LogAttrs(ctx, slog.LevelInfo, "waiting tasks changed",
		slog.String("who", a.By), slog.String("via", a.Via), slog.String("verb", a.Verb), slog.String("scope", a.Scope),
		slog.String("queue", a.Queue), slog.String("type", a.Type), slog.String("after", a.To), slog.String("reason", a.Reason),
		slog.Int("changed", a.Changed), slog.Int("left", a.Left), slog.Any("task_ids", a.TaskIDs))
	if s.store == nil || len(done.Tasks) == 0 {
		return nil
	}
	if err := s.recordAction(context.WithoutCancel(ctx), a); err != nil {
		return fmt.Errorf("the tasks were changed, and that is not in the history: %w", err)
	}
	return nil
}

func actionOf(actor Actor, c TaskChange, done TasksDone) Action {
	a := Action{
		By: actor.Name, Via: actor.Via, Verb: string(c.Verb), Scope: c.Scope, Queue: c.Queue, Type: c.Type, Reason: c.Reason,
		Changed: done.Changed, Left: len(done.Tasks) - done.Changed,
	}
	switch {
	case c.Failed:
		a.Verb = map[Verb]string{VerbRun: "retry", VerbCancel: "delete"}[c.Verb]
	case c.Verb == VerbMove:
		a.To = c.To
	case c.Verb == VerbPriority:
		a.To = fmt.Sprint("priority ", c.Priority)
	}
	for _, task := range done.Tasks {
		if len(a.TaskIDs) < mostNamed {
			a.TaskIDs = append(a.TaskIDs, task.ID)
		}
		if len(a.Scopes) < mostScopes && !slices.Contains(a.Scopes, task.Scope) {
			a.Scopes = append(a.Scopes, task.Scope)
		}
	}
	slices.Sort(a.Scopes) // scopes of a pattern are read in no order
	return a
}

// VisibleActions returns those of some Actions whose scopes an actor may all see.
func (s *Service) VisibleActions(actor Actor, all []Action) []Action {
	return slices.DeleteFunc(slices.Clone(all), func(a Action) bool {
		if actor.seesAll() {
			return false
		}
		hidden := func(scope string) bool { return s.May(actor, VerbSee, scope) != nil }
		moved := a.Verb == string(VerbMove) && hidden(a.To)
		return moved || len(a.Scopes) == 0 || len(a.Scopes) == mostScopes || slices.ContainsFunc(a.Scopes, hidden)
	})
}

// VisibleChange is a version of the limits, reduced to what an actor may see of it.
type VisibleChange struct {
	policystore.Change
	// Hidden is the number of differences, resets and breakers in scopes that the actor may not see. If it is not zero, or if the
	// differences are not known, the version has neither its line nor its reason: both may name what is hidden.
	Hidden int
}

// VisibleChange reduces a version to what an actor may see of it. It returns false if that is nothing.
func (s *Service) VisibleChange(actor Actor, c policystore.Change) (seen VisibleChange, some bool) {
	if actor.seesAll() {
		return VisibleChange{Change: c}, true
	}
	seen.Change = c
	hidden := func(scope string) bool {
		if s.May(actor, VerbSee, scope) == nil {
			return false
		}
		seen.Hidden++
		return true
	}
	seen.Differences = slices.DeleteFunc(slices.Clone(c.Differences), func(d policystore.Difference) bool { return hidden(d.Scope) })
	seen.Version.Resets = slices.DeleteFunc(slices.Clone(c.Version.Resets), func(r policystore.Reset) bool { return hidden(r.Scope) })
	seen.Version.Tiers = slices.DeleteFunc(slices.Clone(c.Version.Tiers), func(t policystore.Tier) bool { return hidden(t.Scope) })
	if c.Version.Breaker != "" {
		hidden(c.Version.Breaker)
	}
	if seen.Hidden > 0 || !c.Known {
		seen.Version.Change, seen.Version.Reason = "changed limits", ""
	}
	return seen, seen.Hidden == 0 || len(seen.Differences)+len(seen.Version.Resets)+len(seen.Version.Tiers) > 0
}

// VisibleConflict is an error for a change that another one preceded, without what the actor may not see of the other.
func (s *Service) VisibleConflict(actor Actor, e *policystore.ConflictError) *policystore.ConflictError {
	seen, _ := s.VisibleChange(actor, policystore.Change{Version: e.Now})
	return &policystore.ConflictError{Want: e.Want, Now: seen.Version}
}
