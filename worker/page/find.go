package page

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

// limitsOf returns the limits for a reading of a scope. The first reading fails for a scope of which there is nothing.
func (h *handler) limitsOf(ctx context.Context, name string, last any) (control.Limits, error) {
	limits, err := h.limits(ctx)
	if err != nil || last != nil {
		return limits, err
	}
	known, err := h.service.Known(ctx, name, limits)
	if err == nil && !known {
		err = notFound("there is no scope " + name + ": the limits do not name it, no task waits there, and none has spent from it in the last 31 days")
	}
	return limits, err
}

// searchResult is a thing that a name may have meant, as a link.
type searchResult struct{ What, Name, Link string }

func (h *handler) scopeResult(name string) searchResult {
	return searchResult{"scope", name, h.link("/scope", "scope", name)}
}

const mostNear = 8 // scopes that are offered in place of a name

// find returns the scope and the task with a name, and similar scopes. It costs some 40 commands and two for each queue.
func (h *handler) find(ctx context.Context, actor Actor, q string) (exact, near []searchResult, err error) {
	limits, err := h.limits(ctx)
	if err != nil {
		return nil, nil, err
	}
	name := strings.Trim(q, "/")
	sees := func(scope string) bool { return h.service.May(actor, control.VerbSee, scope) == nil }
	if _, err := policy.ParseScope(name); err == nil && sees(name) {
		known, err := h.service.Known(ctx, name, limits)
		if err != nil {
			return nil, nil, err
		}
		if known {
			exact = append(exact, h.scopeResult(name))
		}
	}
	if _, err = h.service.Task(ctx, actor, q); err == nil {
		exact = append(exact, searchResult{"task", q, h.link("/task", "id", q)})
	} else if !errors.As(err, new(*control.NoTaskError)) {
		return nil, nil, err
	}
	scopes, err := h.service.Near(ctx, name)
	for _, scope := range scopes {
		if len(near) < mostNear && sees(scope) {
			near = append(near, h.scopeResult(scope))
		}
	}
	return exact, near, err
}

// search leads to the scope or task of a name. If there are both, or none, it offers what there is.
func (h *handler) search(w http.ResponseWriter, r *http.Request, actor Actor) error {
	q, to := field(r, "q"), h.cfg.Prefix+"/"
	if q != "" {
		exact, _, err := h.find(r.Context(), actor, q)
		switch {
		case err != nil:
			return err
		case len(exact) > 1:
			return h.render(w, r, http.StatusOK, "error", view{Title: "Several are named " + q, Actor: actor, Data: failure{Found: exact}})
		case len(exact) == 0:
			return notFound("there is no scope " + q + ", and no queue has a task with that id")
		}
		to = exact[0].Link
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// suggestions returns what the name of a scope or task that was not found may have meant, none if that cannot be read.
func (h *handler) suggestions(r *http.Request, actor Actor) []searchResult {
	name := r.FormValue(map[string]string{"/search": "q", "/task": "id", "/scope": "scope", "/waiters": "scope", "/drain": "scope"}[r.URL.Path])
	if name == "" {
		return nil
	}
	exact, near, _ := h.find(r.Context(), actor, name)
	return append(exact, near...)
}
