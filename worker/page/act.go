package page

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/worker/control"
)

// act is the form that changes waiting tasks.
type act struct {
	verbForm
	Verb control.Verb

	Scope, Queue, Type   string
	To, Priority, Reason string
	All                  bool     // all tasks of the scope and below, of the queue and type
	Chosen               []string // the tasks, as the form names them
	Before               string   // of clear: the moment of the first count
	OfFailed             bool     // it is about tasks that failed
	Error                string   // the kind of their errors
	Fault                string
	expected             int64 // how many tasks the preview has counted

	Counted bool
	Count   control.TaskCount
	Done    *control.TasksDone
	Failed  []control.TaskDone
	Err     string             // why it ended early
	Still   *control.TaskCount // how many wait after a clear that did not reach the end
	Refused control.Refused    // tasks that others own, by scope
}

var taskVerbs = map[control.Verb]verbForm{
	control.VerbRun:      {Title: "Start tasks next", Button: "Start them next"},
	control.VerbMove:     {Title: "Move tasks to another scope", Button: "Move them"},
	control.VerbPriority: {Title: "Change the priority of tasks", Button: "Set it"},
	control.VerbCancel:   {Title: "Cancel tasks", Button: "Cancel them", Danger: true},
	control.VerbClear:    {Title: "Clear", Button: "Cancel all that wait", Danger: true},
}

var failedVerbs = map[control.Verb]verbForm{
	control.VerbRun:    {Title: "Retry tasks that failed", Button: "Retry them"},
	control.VerbCancel: {Title: "Delete tasks that failed", Button: "Delete them", Danger: true},
}

// postTasks handles the form for waiting tasks: it counts the tasks, or makes the change.
func (h *handler) postTasks(w http.ResponseWriter, r *http.Request, actor Actor) error {
	a := &act{
		Verb: control.Verb(r.FormValue("verb")), Scope: r.FormValue("scope"), Queue: field(r, "queue"), Type: field(r, "type"),
		All: r.FormValue("all") != "", To: strings.Trim(field(r, "to"), "/"), Priority: field(r, "priority"), Reason: field(r, "reason"),
		Before: r.FormValue("before"),
	}
	a.verbForm, a.Chosen = taskVerbs[a.Verb], r.Form["task"]
	if a.OfFailed = r.FormValue("failed") != ""; a.OfFailed {
		a.verbForm, a.Error = failedVerbs[a.Verb], r.FormValue("error")
	}
	a.expected, _ = strconv.ParseInt(r.FormValue("expected"), 10, 64)
	if a.Verb == control.VerbClear {
		a.Title, a.All = a.Title+" "+a.Scope, true
	}
	if _, err := h.limits(r.Context()); err != nil {
		return err
	}
	change, err := a.change()
	ready := err == nil && (a.Verb != control.VerbMove || a.To != "") && (a.Verb != control.VerbPriority || a.Priority != "")
	switch {
	case err != nil, !ready: // the form asks for the target first
	case r.FormValue("do") == "make":
		return h.startJob(w, r, actor, a, change)
	default:
		if a.Count, err = h.service.Count(r.Context(), actor, change); err == nil {
			a.Counted, a.Before, a.Refused = true, "", a.Count.Refused
			if at := a.Count.At; !at.IsZero() { // of clear: what is enqueued later stays
				a.Before = at.UTC().Format(time.RFC3339Nano)
			}
		}
	}
	status := http.StatusOK
	if err != nil {
		if status = statusOf(err); status == http.StatusForbidden {
			return err
		}
		a.Fault = control.Plain(err)
	}
	return h.render(w, r, status, "act", view{Title: a.Title, Actor: actor, Data: a})
}

func (a *act) change() (c control.TaskChange, err error) {
	c = control.TaskChange{Verb: a.Verb, To: a.To, Reason: a.Reason, Failed: a.OfFailed}
	if a.Priority != "" {
		if c.Priority, err = strconv.Atoi(a.Priority); err != nil {
			return c, &control.TaskChangeError{Why: fmt.Sprintf("priority %q is not a whole number", a.Priority)}
		}
	}
	if a.Before != "" {
		if c.Before, err = time.Parse(time.RFC3339Nano, a.Before); err != nil {
			return c, &control.TaskChangeError{Why: fmt.Sprintf("%q is not the time of a count", a.Before)}
		}
	}
	if a.All {
		c.Scope, c.Queue, c.Type, c.Error = a.Scope, a.Queue, a.Type, a.Error
		return c, nil
	}
	for _, text := range a.Chosen {
		value, err := url.ParseQuery(text)
		if id := (control.TaskID{Queue: value.Get("queue"), ID: value.Get("id")}); err == nil && id.Queue != "" && id.ID != "" {
			c.IDs = append(c.IDs, id)
		}
	}
	if len(c.IDs) == 0 {
		return c, &control.TaskChangeError{Why: "no task is chosen: go back and choose some, or all of the scope"}
	}
	return c, nil
}
