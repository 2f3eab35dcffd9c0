package page

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/worker/control"
)

// drainState is one reading of the tasks of a scope that are with a worker.
type drainState struct {
	scope  string
	limits control.Limits
	active map[string][]control.ActiveTask // by queue
	read   map[string]time.Time            // by queue
	all    int                             // queues
}

// drainTopic is what still runs of a scope. Of more queues than a snapshot has commands for, it reads some in turn.
func (h *handler) drainTopic(r *http.Request, _ Actor) (topic, error) {
	name := r.FormValue("scope")
	cost := func(last any) int {
		s, again := last.(*drainState)
		if !again {
			return limitsCost + queuesCost // the first reading asks for each queue
		}
		return min(snapshotCommands, limitsCost+queuesCost+s.all*control.ActiveInCost)
	}
	return topic{key: "drain\x00" + name, cost: cost, load: func(ctx context.Context, last any) (any, error) {
		return h.loadDrain(ctx, name, last)
	}}, nil
}

func (h *handler) loadDrain(ctx context.Context, name string, last any) (any, error) {
	s := &drainState{scope: name, active: map[string][]control.ActiveTask{}, read: map[string]time.Time{}}
	before, again := last.(*drainState)
	var err error
	if s.limits, err = h.limits(ctx); err != nil {
		return nil, err
	}
	if !again {
		if err = h.checkScope(ctx, name, s.limits); err != nil {
			return nil, err
		}
	}
	names, err := h.inspector.Queues()
	if err != nil {
		return nil, err
	}
	s.all = len(names)
	if again {
		for _, queue := range names {
			s.active[queue], s.read[queue] = before.active[queue], before.read[queue]
		}
	}
	due := slices.Clone(names)
	slices.SortStableFunc(due, func(a, b string) int { return s.read[a].Compare(s.read[b]) })
	if again { // the first answer is a whole one
		due = due[:min(len(due), (snapshotCommands-limitsCost-queuesCost)/control.ActiveInCost)]
	}
	for _, queue := range due {
		if !again {
			if err := turn(ctx, control.ActiveInCost); err != nil {
				return nil, err
			}
		}
		if s.active[queue], err = h.service.ActiveIn(queue, name); err != nil {
			return nil, err
		}
		s.read[queue] = h.now()
	}
	return s, nil
}

// drainData is the content of the screen.
type drainData struct {
	Scope   string
	Pause   control.Pause
	Tasks   []control.ActiveTask
	Running int
	May     may
}

func (h *handler) drainView(_ *http.Request, who Actor, data any) (any, string, error) {
	s := data.(*drainState)
	d := drainData{Scope: s.scope, Pause: h.service.PauseOf(s.scope, s.limits), May: h.mayDo(who, s.scope)}
	for _, list := range s.active {
		for _, one := range list {
			if h.service.May(who, control.VerbSee, one.Scope) == nil {
				d.Tasks = append(d.Tasks, one)
			}
		}
	}
	slices.SortFunc(d.Tasks, func(a, b control.ActiveTask) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(a.ID, b.ID))
	})
	d.Running = len(d.Tasks)
	d.Tasks = d.Tasks[:min(d.Running, rowsAPage)]
	return d, "Drain " + s.scope, nil
}
