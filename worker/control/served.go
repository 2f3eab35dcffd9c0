package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

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
