package page

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

// noScope is the error for a scope of which there is nothing: it is probably mistyped.
type noScope struct{ name string }

func (e *noScope) Error() string {
	return "there is no scope " + e.name + ": the limits do not name it, no task waits there, and none has spent from it in the last 31 days"
}

// checkScope returns a noScope for a scope of which there is nothing.
func (h *handler) checkScope(ctx context.Context, name string, limits control.Limits) error {
	known, err := h.service.Known(ctx, name, limits)
	if err == nil && !known {
		return &noScope{name}
	}
	return err
}

// found is a thing that a name may have meant, as a link.
type found struct{ What, Name, Link string }

func (h *handler) foundScope(name string) found {
	return found{"scope", name, h.link("/scope", "scope", name)}
}

// finding is one reading of what a name may mean, for all viewers.
type finding struct {
	scope string // empty if there is none of that name
	tasks []control.Task
	near  []string
}

// findTopic is the search for a name. It costs two commands for each of asynq's queues more than it says, as that of a task does.
func (h *handler) findTopic(q string) topic {
	return topic{key: "find\x00" + q, cost: fixed(limitsCost + control.KnownCost + control.NearCost + taskCost), load: func(ctx context.Context, _ any) (any, error) {
		return h.loadFinding(ctx, q)
	}}
}

func (h *handler) loadFinding(ctx context.Context, q string) (f finding, err error) {
	limits, err := h.limits(ctx)
	if err != nil {
		return f, err
	}
	name := strings.Trim(q, "/")
	if _, err := policy.ParseScope(name); err == nil {
		known, err := h.service.Known(ctx, name, limits)
		if err != nil {
			return f, err
		}
		if known {
			f.scope = name
		}
	}
	if f.tasks, err = h.service.Task(ctx, everybody, q); err != nil && !errors.As(err, new(*control.NoTaskError)) {
		return f, err
	}
	f.near, err = h.service.Near(ctx, name)
	return f, err
}

// mostNear is how many scopes are offered in place of a name.
const mostNear = 8

// find returns the scope and the task of a name that the actor may see, and scopes that it may have meant.
func (h *handler) find(ctx context.Context, who Actor, q string) (exact, near []found, err error) {
	st := h.hub.get(ctx, h.findTopic(q), who.Name)
	f, is := st.data.(finding)
	if !is {
		return nil, nil, errOr(st.err, ctx.Err())
	}
	sees := func(scope string) bool { return h.service.May(who, control.VerbSee, scope) == nil }
	if f.scope != "" && sees(f.scope) {
		exact = append(exact, h.foundScope(f.scope))
	}
	if slices.ContainsFunc(f.tasks, func(t control.Task) bool { return sees(t.Scope) }) {
		exact = append(exact, found{"task", q, h.link("/task", "id", q)})
	}
	for _, scope := range f.near {
		if len(near) < mostNear && sees(scope) {
			near = append(near, h.foundScope(scope))
		}
	}
	return exact, near, nil
}

// search leads to the scope or task of a name. If there are both, or none, it offers what there is.
func (h *handler) search(w http.ResponseWriter, r *http.Request, who Actor) {
	q := strings.TrimSpace(r.FormValue("q"))
	if q == "" {
		http.Redirect(w, r, h.cfg.Prefix+"/", http.StatusSeeOther)
		return
	}
	exact, _, err := h.find(r.Context(), who, q)
	switch {
	case err != nil:
		h.failed(w, r, who, err)
	case len(exact) == 1:
		http.Redirect(w, r, exact[0].Link, http.StatusSeeOther)
	case len(exact) > 1:
		h.render(w, r, http.StatusOK, "error", view{Title: "Several are named " + q, Who: who, Query: q, Data: failure{Found: exact}})
	default:
		h.failed(w, r, who, &notFound{"there is no scope " + q + ", and no queue has a task with that id"})
	}
}

// meant returns what the name of a scope or task that was not found may have meant, none if that cannot be read.
func (h *handler) meant(r *http.Request, who Actor) []found {
	name := r.FormValue(map[string]string{"/search": "q", "/task": "id", "/scope": "scope", "/waiters": "scope", "/drain": "scope"}[r.URL.Path])
	if name == "" {
		return nil
	}
	exact, near, _ := h.find(r.Context(), who, name)
	return append(exact, near...)
}
