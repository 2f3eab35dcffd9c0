package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

// mostSearched is how many waiting tasks are looked through for one whose scope nobody wrote down: some seconds' worth.
const mostSearched = 100_000

// Where the scope of a task was found that has no header.
const (
	fromLine      = "line"
	fromLastError = "last_error"
)

// found returns the scope that a worker's Spends gave to a task: its place in line has it, or its last error. Both are empty where
// no worker has put the task back yet.
func (s *Service) found(ctx context.Context, info *asynq.TaskInfo) (scope, from string, err error) {
	if scope, is := worker.WaitingScope(info.LastErr); is {
		return scope, fromLastError, nil
	}
	if !waits(info.State.String()) {
		return "", "", nil
	}
	scope, err = s.placeOf(ctx, queue.Ticket(info.Queue, info.ID))
	if err != nil || scope == "" {
		return "", "", err
	}
	return scope, fromLine, nil
}

// placeOf looks for a ticket among those who stand in line.
func (s *Service) placeOf(ctx context.Context, ticket string) (scope string, err error) {
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return "", err
	}
	searched := 0
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		some, err := s.limiter.Waitlist().Waiting(provider).Next(ctx, mostSearched-searched)
		if err != nil {
			return "", err
		}
		if at := slices.IndexFunc(some, func(p throttle.WaiterRef) bool { return p.ID == ticket }); at >= 0 {
			return some[at].Scope, nil
		}
		if searched += len(some); searched >= mostSearched {
			break
		}
	}
	return "", nil
}
