package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqread"
)

// pageSize is how many tasks one call of asynq returns.
const pageSize = 200

// ActiveTask is a task that a worker has: it runs, or is held for its start.
type ActiveTask struct{ Queue, ID, Type, Scope string }

// ActiveTasks returns the active tasks whose headers name a wanted scope, with their types. It costs two calls for each queue and
// each page of active tasks.
func ActiveTasks(inspector *asynq.Inspector, wanted func(scope string) bool) (map[waitlist.Ref]string, error) {
	queues, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	active := map[waitlist.Ref]string{}
	for _, name := range queues {
		err := eachActive(inspector, name, func(t ActiveTask) {
			if wanted(t.Scope) {
				active[waitlist.Ref{Scope: t.Scope, Queue: name, ID: t.ID}] = t.Type
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return active, nil
}

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

// Server is one of asynq's servers, as it described itself some seconds ago.
type Server = asynqread.ServerInfo

type servers struct {
	mu   sync.Mutex
	read time.Time
	list []Server
	all  int
}

// Servers returns asynq's live servers, oldest first, as they were 15 seconds ago at most: 1000 at most, and how many there are. It
// costs two round trips, once in 15 seconds.
func (s *Service) Servers(ctx context.Context) (list []Server, all int, err error) {
	l := &s.servers
	l.mu.Lock()
	defer l.mu.Unlock()
	now := s.now()
	if !l.read.IsZero() && now.Sub(l.read) < 15*time.Second {
		return l.list, l.all, nil
	}
	keys, all, err := asynqread.ServerKeys(ctx, s.rdb, now, 1000)
	if err != nil {
		return nil, 0, err
	}
	if list, err = asynqread.ReadServers(ctx, s.rdb, keys); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(list, func(a, b Server) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID))
	})
	l.read, l.list, l.all = now, list, all-(len(keys)-len(list)) // without those that stopped just now
	return l.list, l.all, nil
}

// Serves reports whether a live worker serves an asynq queue, and whether that is known. It costs what
// Servers does. asynq forgets a server that died within some seconds; one that stops takes no more tasks.
func (s *Service) Serves(ctx context.Context, queue string) (served, known bool) {
	list, all, err := s.Servers(ctx)
	served = slices.ContainsFunc(list, func(s Server) bool {
		_, has := s.Queues[queue]
		return has && s.Status == "active"
	})
	return served, err == nil && (served || len(list) == all)
}
