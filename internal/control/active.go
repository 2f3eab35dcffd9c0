package control

import (
	"errors"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
)

// pageSize is how many tasks one call of asynq returns.
const pageSize = 200

// active returns the number of active tasks of a scope and of the scopes below it.
func (s *Service) active(name string) (int, error) {
	active, err := ActiveTasks(s.inspector, func(scope string) bool { return scope == name || strings.HasPrefix(scope, name+"/") })
	return len(active), err
}

// ActiveTasks returns the tickets of the active tasks whose headers name a wanted scope. It costs two
// calls for each queue and each page of active tasks. There are as many active tasks as workers have
// slots.
func ActiveTasks(inspector *asynq.Inspector, wanted func(scope string) bool) (map[string]bool, error) {
	queues, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, name := range queues {
		for page := 1; ; page++ {
			tasks, err := inspector.ListActiveTasks(name, asynq.Page(page), asynq.PageSize(pageSize))
			if errors.Is(err, asynq.ErrQueueNotFound) {
				break // the queue was removed just now
			}
			if err != nil {
				return nil, err
			}
			for _, task := range tasks {
				if !task.IsOrphaned && wanted(task.Headers[queue.HeaderScope]) {
					seen[queue.Ticket(name, task.ID)] = true // a task can be on two pages
				}
			}
			if len(tasks) < pageSize {
				break
			}
		}
	}
	return seen, nil
}
