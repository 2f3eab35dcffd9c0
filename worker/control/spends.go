package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/worker"
)

// mostSearched is how many waiting tasks are searched for one without a scope in its headers: some
// seconds' worth.
const mostSearched = 100_000

// The sources of the scope of a task that has no header.
const (
	fromLine      = "line"
	fromLastError = "last_error"
)

// found returns the scope that a worker's Spends gave to a task, from its place in the queue or from
// its last error. Both results are empty if no worker has put the task back yet.
func (s *Service) found(ctx context.Context, info *asynq.TaskInfo) (scope, from string, err error) {
	if scope, is := worker.WaitingScope(info.LastErr); is {
		return scope, fromLastError, nil
	}
	if !waits(info.State.String()) {
		return "", "", nil
	}
	scope, err = s.placeOf(ctx, info.Queue, info.ID)
	if err != nil || scope == "" {
		return "", "", err
	}
	return scope, fromLine, nil
}

// placeOf searches the waiting tasks for one of an asynq queue, and returns its scope.
func (s *Service) placeOf(ctx context.Context, queue, id string) (scope string, err error) {
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return "", err
	}
	searched := 0
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		some, err := inspect.Of(s.limiter.Waitlist()).Tasks(provider).Next(ctx, mostSearched-searched)
		if err != nil {
			return "", err
		}
		if at := slices.IndexFunc(some, func(p waitlist.Ref) bool { return p.Queue == queue && p.ID == id }); at >= 0 {
			return some[at].Scope, nil
		}
		if searched += len(some); searched >= mostSearched {
			break
		}
	}
	return "", nil
}
