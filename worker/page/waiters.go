package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

// waiters is one reading of a page of the waiters in a scope's own queues.
type waiters struct {
	turns control.Turns
	heads map[asynqread.TaskRef]asynqread.TaskHead
}

// loadWaiters reads a page of waiters. It costs some 15 commands, and one for each task.
func (h *handler) loadWaiters(ctx context.Context, of url.Values, last any) (any, error) {
	name, from := of.Get("scope"), (pageNumber(of.Get("page"))-1)*rowsAPage
	_, err := h.limitsOf(ctx, name, last)
	if err != nil {
		return nil, err
	}
	w := &waiters{}
	w.turns, err = h.service.Turns(ctx, name, from, rowsAPage)
	if err == nil && len(w.turns.List) == 0 && w.turns.All > 0 { // the queue is shorter by now: its last page
		w.turns, err = h.service.Turns(ctx, name, int((w.turns.All-1)/rowsAPage*rowsAPage), rowsAPage)
	}
	if err != nil {
		return nil, err
	}
	var tasks []asynqread.TaskRef
	for _, t := range w.turns.List {
		tasks = append(tasks, asynqread.TaskRef{Queue: t.Queue, ID: t.ID})
	}
	w.heads, err = asynqread.TaskHeads(ctx, h.cfg.Redis, tasks)
	return w, err
}

type waiterRow struct {
	control.NextTurn
	Type, EnqueuedBy, Cost, Priority string
	Since, Patience                  time.Time
	Gone                             bool
	Value                            string // its name in forms
}

type waitersData struct {
	Scope     string
	All       int64
	Rows      []waiterRow
	Pages     pages
	Unmatched bool
	May       may
}

func (h *handler) waitersView(r *http.Request, actor Actor, data any) (any, string, error) {
	w := data.(*waiters)
	d := waitersData{Scope: w.turns.Scope, All: w.turns.All, Unmatched: w.turns.Unmatched, May: h.mayDo(actor, w.turns.Scope)}
	for _, turn := range w.turns.List {
		row := waiterRow{NextTurn: turn, Value: taskValue(turn.Queue, turn.ID)}
		head, is := w.heads[asynqread.TaskRef{Queue: turn.Queue, ID: turn.ID}]
		if row.Gone = !is; is {
			row.Type, row.EnqueuedBy = head.Type, enqueuedBy(head.Type, head.Headers)
			row.Cost, row.Priority = head.Headers[queue.HeaderCost], head.Headers[queue.HeaderPriority]
			row.Since, row.Patience = patience(head.Headers)
		}
		d.Rows = append(d.Rows, row)
	}
	d.Pages = pagesFor(w.turns.All, pageNumber(r.FormValue("page")), r)
	return d, "Tasks that wait in " + w.turns.Scope, nil
}

// taskValue is the name of a task in forms.
func taskValue(queue, id string) string { return url.Values{"queue": {queue}, "id": {id}}.Encode() }

// patience returns when a task's wait began, and when it ends at the latest. Both are zero if unknown.
func patience(headers map[string]string) (since, until time.Time) {
	if at, err := time.Parse(time.RFC3339Nano, headers[queue.HeaderDue]); err == nil {
		since = at
	}
	if most, err := time.ParseDuration(headers[queue.HeaderMaxWait]); err == nil && !since.IsZero() {
		until = since.Add(most)
	}
	if at, err := time.Parse(time.RFC3339Nano, headers[queue.HeaderDeadline]); err == nil && (until.IsZero() || at.Before(until)) {
		until = at
	}
	return since, until
}

type pages struct {
	Page, Last int
	Prev, Next string // links, empty for none
}

func pageNumber(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return min(max(1, n), 1_000_000)
}

func pagesFor(all int64, page int, r *http.Request) pages {
	p := pages{Last: max(1, int((all+rowsAPage-1)/rowsAPage))}
	p.Page = min(page, p.Last)
	link := func(n int) string {
		query := r.URL.Query()
		query.Set("page", strconv.Itoa(n))
		return "?" + query.Encode()
	}
	if p.Page > 1 {
		p.Prev = link(p.Page - 1)
	}
	if p.Page < p.Last {
		p.Next = link(p.Page + 1)
	}
	return p
}

// pageOf returns the part of a list that a request asks for.
func pageOf[T any](list []T, r *http.Request) ([]T, pages) {
	p := pagesFor(int64(len(list)), pageNumber(r.FormValue("page")), r)
	from := (p.Page - 1) * rowsAPage
	return list[from:min(len(list), from+rowsAPage)], p
}

// drain is one reading of the tasks of a scope that are with a worker, and the content of the screen.
type drain struct {
	Scope   string
	Pause   control.Pause
	Tasks   []control.ActiveTask
	Running int
	May     may
}

// loadDrain reads the active tasks of a scope. It costs some three commands for each of asynq's queues.
func (h *handler) loadDrain(ctx context.Context, of url.Values, last any) (any, error) {
	name := of.Get("scope")
	limits, err := h.limitsOf(ctx, name, last)
	if err != nil {
		return nil, err
	}
	d := drain{Scope: name, Pause: h.service.PauseOf(name, limits)}
	active, err := control.ActiveTasks(h.inspector, func(scope string) bool { return scope == name || strings.HasPrefix(scope, name+"/") })
	for task, kind := range active {
		d.Tasks = append(d.Tasks, control.ActiveTask{Queue: task.Queue, ID: task.ID, Type: kind, Scope: task.Scope})
	}
	slices.SortFunc(d.Tasks, func(a, b control.ActiveTask) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.ID, b.ID))
	})
	return d, err
}

func (h *handler) drainView(_ *http.Request, actor Actor, data any) (any, string, error) {
	d := data.(drain)
	d.May = h.mayDo(actor, d.Scope)
	d.Tasks = slices.DeleteFunc(slices.Clone(d.Tasks), func(t control.ActiveTask) bool { return h.service.May(actor, control.VerbSee, t.Scope) != nil })
	d.Running = len(d.Tasks)
	d.Tasks = d.Tasks[:min(d.Running, rowsAPage)]
	return d, "Drain " + d.Scope, nil
}
