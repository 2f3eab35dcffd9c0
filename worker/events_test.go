package worker

import (
	"sync"

	"github.com/headway-go/headway/worker/events"
)

// reported are the events of a process.
type reported struct {
	mu   sync.Mutex
	list []events.Event
}

func (r *reported) onEvent(e events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *reported) has(kind events.Kind, scope string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if e.Kind == kind && e.Scope == scope && e.App == "shop" {
			return true
		}
	}
	return false
}

func (r *reported) percents() (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		list = append(list, e.Percent)
	}
	return list
}
