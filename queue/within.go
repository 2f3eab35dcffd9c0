package queue

import "strings"

// Within keeps the tasks of somebody else, such as a tenant's file, to a part of the scopes.
type Within struct {
	// Scope is the path that tasks may spend from, and from what lies below it: others are refused. Ids are the
	// scope's own: a task's id in asynq is the scope, "//" and the id that it was given, so that
	// nobody takes the ids of another scope.
	Scope string
	// MaxPriority is the highest priority that tasks may have: higher ones are refused, since they
	// would go before everybody else's where limits.yaml has no max_priority.
	MaxPriority int
}

// ownID is the id in asynq of a task that was given one. No scope holds "//", so two scopes have no id in
// common.
func (w *Within) ownID(id string) string {
	if w == nil || id == "" {
		return id
	}
	return w.Scope + "//" + id
}

// check adds what a task may not ask for.
func (w *Within) check(t Task, found faults) faults {
	if w == nil {
		return found
	}
	if !found.has("scope") && t.Scope != w.Scope && !strings.HasPrefix(t.Scope, w.Scope+"/") {
		found.add("scope", "%s is not within %s", clip(t.Scope), clip(w.Scope))
	}
	if t.Priority > w.MaxPriority && !found.has("priority") {
		found.add("priority", "%d is above %d, the highest within %s", t.Priority, w.MaxPriority, clip(w.Scope))
	}
	if most := maxName - len(w.ownID("-")) + 1; len(t.ID) > most && !found.has("id") {
		found.add("id", "%d bytes long; %d at most within %s", len(t.ID), max(0, most), clip(w.Scope))
	}
	return found
}

// with returns a task with its defaults, and with the id that it has in asynq.
func (c *Client) with(t Task) Task {
	t = t.withDefaults()
	t.ID = c.within.ownID(t.ID)
	return t
}
