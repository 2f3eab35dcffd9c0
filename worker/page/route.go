package page

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

// route is a path of the page. Only actors with the right to what the request needs reach its handler.
type route struct {
	pattern string // of http.ServeMux
	needs   needs
	handle  func(http.ResponseWriter, *http.Request, Actor) error // which is shown as a screen
}

// needs returns what a request needs. It reads the request alone.
type needs func(*http.Request) (need, error)

// need is a verb at a place of the limits.
type need struct {
	verb  control.Verb
	place string
	// rows says that the service checks each row of the answer. The actor then needs the right to any place.
	rows bool
}

// routed are the routes of actors. Scopes and ids are in queries, since a name may be "..".
func (h *handler) routed() []route {
	all := []route{
		{"GET /history.ndjson", seeRows, h.export},
		{"GET /limits", seeRows, h.limitsScreen},
		{"GET /limits.yaml", seeAll, h.exportLimits},
		{"GET /forecast", seeRows, h.forecast},
		{"POST /forecast", seeRows, h.forecast},
		{"GET /change", needsVerb, h.changeLimits},
		{"POST /change", needsVerb, h.changeLimits},
		{"POST /tasks", changeTasks, h.postTasks},
		{"POST /stop", seeRows, h.postStop}, // of one's own
		{"GET /done", seeRows, h.done},
		{"GET /live", h.seeLive, h.live},
		{"GET /search", seeRows, h.search},
		{"/", seeRows, func(http.ResponseWriter, *http.Request, Actor) error { return notFound("there is no such page") }},
	}
	for path, s := range h.screens() {
		if path == "/" {
			path = "/{$}"
		}
		all = append(all, route{"GET " + path, s.needs, func(w http.ResponseWriter, r *http.Request, actor Actor) error { return h.show(w, r, actor, s) }})
	}
	return all
}

// may returns an error if an actor may not have what a request needs.
func (h *handler) may(actor Actor, r *http.Request, needs needs) error {
	n, err := needs(r)
	switch {
	case err != nil:
		return err
	case n.rows:
		return h.service.MaySomewhere(actor, n.verb)
	}
	return h.service.May(actor, n.verb, n.place)
}

func seeRows(*http.Request) (need, error) { return need{verb: control.VerbSee, rows: true}, nil }

func seeAll(*http.Request) (need, error) { return need{verb: control.VerbSee}, nil }

func seeScope(r *http.Request) (need, error) {
	name := r.FormValue("scope")
	if _, err := policy.ParseScope(name); err != nil {
		return need{}, badRequest(control.Plain(err))
	}
	return need{verb: control.VerbSee, place: name}, nil
}

func seeTask(r *http.Request) (need, error) {
	if r.FormValue("id") == "" {
		return need{}, badRequest("no id of a task is given")
	}
	return seeRows(r)
}

func (h *handler) seeLive(r *http.Request) (need, error) {
	s, looked, err := h.watched(r)
	if err != nil {
		return need{}, err
	}
	return s.needs(looked)
}

func needsVerb(r *http.Request) (need, error) {
	verb := control.Verb(r.FormValue("verb"))
	if _, is := verbs[verb]; !is {
		return need{}, badRequest(fmt.Sprintf("limits cannot be changed by %q", verb))
	}
	return need{verb: verb, place: field(r, "scope"), rows: verb == control.VerbRollback}, nil
}

func field(r *http.Request, name string) string { return strings.TrimSpace(r.FormValue(name)) }

// changeTasks needs the right to the scope; the service checks that of each task that was chosen or that failed.
func changeTasks(r *http.Request) (need, error) {
	verb, scope := control.Verb(r.FormValue("verb")), r.FormValue("scope")
	if _, is := taskVerbs[verb]; !is {
		return need{}, badRequest(fmt.Sprintf("tasks cannot be changed by %q", verb))
	}
	return need{verb: verb, place: scope, rows: r.FormValue("failed") != "" || scope == "" && len(r.Form["task"]) > 0}, nil
}
