package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
)

// pageSize is how many tasks one call of asynq returns.
const pageSize = 200

// active returns the number of active tasks of a scope and of the scopes below it.
func (s *Service) active(name string) (int, error) {
	active, err := ActiveTasks(s.inspector, func(scope string) bool { return isIn(scope, name) })
	return len(active), err
}

// ActiveTask is a task that a worker has: it runs, or is held for its start.
type ActiveTask struct{ Queue, ID, Type, Scope string }

// ActiveInCost is how many Redis commands ActiveIn sends for each page of 200 active tasks, at most.
const ActiveInCost = 5

// ActiveIn returns the active tasks of one asynq queue whose scope is name or below it, as their headers have it. A queue that does
// not exist has none.
func (s *Service) ActiveIn(asynqQueue, name string) (list []ActiveTask, err error) {
	err = eachActive(s.inspector, asynqQueue, func(t ActiveTask) {
		if isIn(t.Scope, name) {
			list = append(list, t)
		}
	})
	return list, err
}

// isIn reports whether a scope is another or below it.
func isIn(scope, name string) bool { return scope == name || strings.HasPrefix(scope, name+"/") }

// ActiveTasks returns the active tasks whose headers name a wanted scope. It costs two
// calls for each queue and each page of active tasks. There are as many active tasks as workers have
// slots.
func ActiveTasks(inspector *asynq.Inspector, wanted func(scope string) bool) (map[waitlist.Ref]bool, error) {
	queues, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	seen := map[waitlist.Ref]bool{}
	for _, name := range queues {
		err := eachActive(inspector, name, func(t ActiveTask) {
			if wanted(t.Scope) {
				seen[waitlist.Ref{Scope: t.Scope, Queue: name, ID: t.ID}] = true
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// eachActive calls do once for each active task of a queue.
func eachActive(inspector *asynq.Inspector, name string, do func(ActiveTask)) error {
	seen := map[string]bool{} // a task can be on two pages
	for page := 1; ; page++ {
		tasks, err := inspector.ListActiveTasks(name, asynq.Page(page), asynq.PageSize(pageSize))
		if errors.Is(err, asynq.ErrQueueNotFound) {
			return nil // the queue was removed just now
		}
		if err != nil {
			return err
		}
		for _, task := range tasks {
			if !task.IsOrphaned && !seen[task.ID] {
				seen[task.ID] = true
				do(ActiveTask{Queue: name, ID: task.ID, Type: task.Type, Scope: task.Headers[queue.HeaderScope]})
			}
		}
		if len(tasks) < pageSize {
			return nil
		}
	}
}

// servedFor is for how long the list of servers is good: asynq's costs three commands for each.
const servedFor = 15 * time.Second

// served knows which queues live workers serve. It is safe for concurrent use.
type served struct {
	mu     sync.Mutex
	at     time.Time
	queues []string
}

// unserved reports whether no live worker serves a queue. asynq forgets a worker that died within some seconds. Without an answer from
// Redis it is false: nothing is said of what is not known.
func (s *Service) unserved(ctx context.Context, queue string) bool {
	served, known := s.serves(ctx, queue)
	return known && !served
}

func (s *Service) servedByList(_ context.Context, queue string) (served, known bool) {
	s.served.mu.Lock()
	defer s.served.mu.Unlock()
	if now := s.now(); s.served.at.IsZero() || now.Sub(s.served.at) >= servedFor {
		servers, err := s.inspector.Servers()
		if err != nil {
			return false, false
		}
		s.served.at, s.served.queues = now, queuesOf(servers)
	}
	return slices.Contains(s.served.queues, queue), true
}

// Unserved returns those of some queues that no live worker serves. It costs three calls for each of asynq's servers, and one.
func Unserved(inspector *asynq.Inspector, queues []string) ([]string, error) {
	servers, err := inspector.Servers()
	if err != nil {
		return nil, err
	}
	served := queuesOf(servers)
	return slices.DeleteFunc(slices.Clone(queues), func(name string) bool { return slices.Contains(served, name) }), nil
}

func queuesOf(servers []*asynq.ServerInfo) (queues []string) {
	for _, one := range servers {
		if one.Status != "active" {
			continue // it takes no more tasks
		}
		for name := range one.Queues {
			queues = append(queues, name)
		}
	}
	return queues
}
