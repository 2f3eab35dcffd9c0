package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
)

func enqueuedBy(kind string, headers map[string]string) string {
	return queue.EnqueuedBy(asynq.NewTaskWithHeaders(kind, nil, headers))
}

// taskState is one reading of the tasks of an id, one for each queue that has one.
type taskState struct {
	tasks []control.Task
	infos []*asynq.TaskInfo // nil for a task that is gone by now
}

// loadTask reads the tasks with an id in one queue, or in all: some 20 commands, and two for each queue.
func (h *handler) loadTask(ctx context.Context, of url.Values, _ any) (any, error) {
	if _, err := h.limits(ctx); err != nil {
		return nil, err
	}
	var queues []string
	if name := of.Get("queue"); name != "" {
		queues = append(queues, name)
	}
	s := &taskState{}
	var err error
	if s.tasks, err = h.service.Task(ctx, reader, of.Get("id"), queues...); err != nil && !errors.As(err, new(*control.NoTaskError)) {
		return nil, err
	}
	for _, t := range s.tasks {
		info, _ := h.inspector.GetTaskInfo(t.Queue, t.ID)
		s.infos = append(s.infos, info)
	}
	return s, nil
}

// reader is the actor that reads for all viewers. The service decides what each of them sees of it.
var reader = Actor{Name: "page", Role: RoleAdmin, Via: "page"}

type taskData struct {
	control.Task
	Sentence string
	At       time.Time // the time at the end of the sentence
	Line     []step
	Patience time.Time
	By       string // the application that enqueued it
	Retries  string
	Payload  string
	Hidden   bool // the actor may not see the payload
	CostText string
	Value    string
	May      may
}

type step struct {
	What string
	At   time.Time
	More string
	Next bool // it has not happened yet
}

func (h *handler) taskView(r *http.Request, actor Actor, data any) (any, string, error) {
	id, s := r.FormValue("id"), data.(*taskState)
	title := "Task " + id
	var list []taskData
	for i, t := range s.tasks {
		if h.service.May(actor, control.VerbSee, t.Scope) == nil { // or else as if there were none
			list = append(list, h.taskOf(actor, t, s.infos[i]))
		}
	}
	if len(list) > 0 {
		return list, title, nil
	}
	return nil, title, notFound("no queue has a task " + id + ": it was never enqueued, was deleted, or has succeeded and was not kept")
}

func (h *handler) taskOf(actor Actor, t control.Task, info *asynq.TaskInfo) taskData {
	d := taskData{Task: t, May: h.mayDo(actor, t.Scope), CostText: number(t.Cost), Value: taskValue(t.Queue, t.ID)}
	if len(t.Costs) > 0 {
		d.CostText = t.Costs.String()
	}
	if info != nil {
		var since time.Time
		since, d.Patience = patience(info.Headers)
		d.By = enqueuedBy(info.Type, info.Headers)
		d.Retries = info.Headers[queue.HeaderMaxRetry]
		if d.Hidden = !d.May.Payload; !d.Hidden {
			d.Payload = payloadText(info.Payload)
		}
		by := ""
		if d.By != "" {
			by = "by " + d.By
		}
		d.Line = timeline(t, info, since, by)
	}
	d.Sentence, d.At = sentence(t)
	return d
}

const mostPayload = 16 << 10

func payloadText(payload []byte) string {
	if !utf8.Valid(payload) {
		return fmt.Sprintf("%d bytes that are no text", len(payload))
	}
	if len(payload) > mostPayload {
		return strings.ToValidUTF8(string(payload[:mostPayload]), "") + fmt.Sprintf("\n… %d bytes in all", len(payload))
	}
	return string(payload)
}

// stateWords are sentences for the states of asynq that need no more than the state.
var stateWords = map[string]string{
	"active":    "Is with a worker: it runs, or is held for a start that is near",
	"completed": "Has succeeded",
	"pending":   "Is ready for the next worker that has room",
}

// sentence returns the state of a task and what it waits for. The sentence ends with the time, if there is one.
func sentence(t control.Task) (text string, at time.Time) {
	why := reasonWords(t.Reason, t.Rule, t.RuleScope)
	switch {
	case t.Turn == control.TurnWaiting:
		text := fmt.Sprintf("Waits for %s, place %s", cmp.Or(why, "its turn"), number(t.Position))
		if !t.Start.IsZero() {
			return text + ", starts about", t.Start.Time
		}
		return text + "; its start is unknown", time.Time{}
	case t.Turn == control.TurnDispatched:
		return "Has been granted its start, and is on its way to a worker", time.Time{}
	case t.Reason != "" && t.Waits():
		return "Waits for " + why, time.Time{}
	}
	switch t.State {
	case "archived":
		return "Has failed for good: " + cmp.Or(t.LastError, "the reason is not known"), time.Time{}
	case "retry":
		return "Failed, and is tried again", t.NextProcessAt.Time
	case "scheduled":
		return "Is not due yet: it is scheduled for", t.NextProcessAt.Time
	}
	return cmp.Or(stateWords[t.State], "Is "+t.State), time.Time{}
}

// timeline returns what has happened to a task, and what comes next.
func timeline(t control.Task, info *asynq.TaskInfo, since time.Time, by string) (line []step) {
	add := func(what string, at time.Time, more string, next bool) {
		line = append(line, step{what, at, more, next})
	}
	add("Enqueued, its wait begins", since, by, false)
	if t.Turn == control.TurnWaiting || t.Turn == control.TurnDispatched {
		more := ""
		if t.Position > 0 {
			more = "place " + number(t.Position) + " in the queue of " + t.Scope
		}
		add("Planned", time.Time{}, more, false)
	}
	if !info.LastFailedAt.IsZero() {
		add("Failed", info.LastFailedAt, t.LastError, false)
	}
	switch {
	case t.Turn == control.TurnDispatched:
		add("Dispatched: its start is granted", time.Time{}, "", false)
		add("Starts", time.Time{}, "", true)
	case t.Turn == control.TurnWaiting:
		add("Dispatched, just before its start", time.Time{}, "", true)
		about := "about"
		if !t.StartTo.IsZero() {
			about += ", between " + clockText(t.StartFrom.Time) + " and " + clockText(t.StartTo.Time)
		}
		add("Starts", t.Start.Time, about, true)
	case t.State == "active":
		add("Started, or held for its start", time.Time{}, "", false)
		add("Settled, when its run ends", time.Time{}, "", true)
	case t.State == "completed":
		add("Succeeded and settled", info.CompletedAt, "", false)
	case t.State == "archived":
		add("Given up", info.LastFailedAt, t.LastError, false)
	case t.Waits():
		add("Picked up by a worker", t.NextProcessAt.Time, "", true)
	}
	return line
}
