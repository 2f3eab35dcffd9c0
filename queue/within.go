package queue

import (
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

// Within restricts tasks from another author, such as a tenant's file, to a part of the scopes.
type Within struct {
	// Scope is the path that tasks may spend from, with the levels below it; a task of any other scope is
	// refused. Each Scope has an id space of its own: a task's id in asynq is the scope, "//" and the id
	// that the task was given, so that no task takes an id of another scope.
	Scope string
	// MaxPriority is the highest priority that tasks may have. A higher one is refused: it would overtake
	// the scope's other tasks.
	MaxPriority int
}

// ownID returns the id in asynq of a task with an id. No scope holds "//", so two scopes have no id in common.
func (w *Within) ownID(id string) string {
	if w == nil || id == "" {
		return id
	}
	return w.Scope + "//" + id
}

// check adds a fault for each request that is out of bounds.
func (w *Within) check(t Task, found faults) faults {
	if w == nil {
		return found
	}
	if !found.has("scope") && t.Scope != w.Scope && !strings.HasPrefix(t.Scope, w.Scope+"/") {
		found.add("scope", "%s is not within %s", diag.Clip(t.Scope), diag.Clip(w.Scope))
	}
	if t.Priority > w.MaxPriority && !found.has("priority") {
		found.add("priority", "%d is above %d, the highest within %s", t.Priority, w.MaxPriority, diag.Clip(w.Scope))
	}
	if most := maxName - len(w.ownID("-")) + 1; len(t.ID) > most && !found.has("id") {
		found.add("id", "%d bytes long; %d at most within %s", len(t.ID), max(0, most), diag.Clip(w.Scope))
	}
	return found
}
