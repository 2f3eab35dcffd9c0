package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/headway-go/headway/throttle/policystore"
)

// A record names the first mostNamed tasks, and mostScopes scopes.
const (
	mostNamed  = 10
	mostScopes = 20
)

// auditTasks records who changed which tasks, in the log and in Redis. Without a Store it is in the log alone, and so it is for a
// Redis user that may change tasks and not the limits.
func (s *Service) auditTasks(ctx context.Context, who Actor, c TaskChange, done TasksDone) error {
	a := actionOf(who, c, done)
	s.log.LogAttrs(ctx, slog.LevelInfo, "waiting tasks changed",
		slog.String("who", a.By), slog.String("via", a.Via), slog.String("verb", a.Verb), slog.String("scope", a.Scope),
		slog.String("queue", a.Queue), slog.String("type", a.Type), slog.String("after", a.To), slog.String("reason", a.Reason),
		slog.Int("changed", a.Changed), slog.Int("left", a.Left), slog.Any("task_ids", a.TaskIDs))
	if s.store == nil || len(done.Tasks) == 0 {
		return nil
	}
	if err := s.store.RecordAction(context.WithoutCancel(ctx), a); err != nil && !errors.Is(err, policystore.ErrNotPermitted) {
		return fmt.Errorf("the tasks were changed, and that is not in the history: %w", err)
	}
	return nil
}

func actionOf(who Actor, c TaskChange, done TasksDone) policystore.Action {
	a := policystore.Action{
		By: who.Name, Via: who.Via, Verb: string(c.Verb), Scope: c.Scope, Queue: c.Queue, Type: c.Type, Reason: c.Reason,
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

// Actions answers who changed waiting tasks, newest first: those of whose scopes an actor may see all. Costs one round trip.
func (s *Service) Actions(ctx context.Context, who Actor) ([]policystore.Action, error) {
	if s.store == nil {
		return nil, errNoStore
	}
	all, err := s.store.Actions(ctx)
	if err != nil {
		return nil, err
	}
	return s.SeenActions(who, all), nil
}

// SeenActions are those of some Actions of whose scopes an actor may see all.
func (s *Service) SeenActions(who Actor, all []policystore.Action) []policystore.Action {
	return slices.DeleteFunc(slices.Clone(all), func(a policystore.Action) bool {
		if who.seesAll() {
			return false
		}
		hidden := func(scope string) bool { return s.May(who, VerbSee, scope) != nil }
		moved := a.Verb == string(VerbMove) && hidden(a.To)
		return moved || len(a.Scopes) == 0 || len(a.Scopes) == mostScopes || slices.ContainsFunc(a.Scopes, hidden)
	})
}
