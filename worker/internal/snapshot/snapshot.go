// Package snapshot reads the state of limits, waiting tasks and asynq's queues for metrics.
//
// Only package worker uses it.
package snapshot

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/survey"
	"github.com/headway-go/headway/worker/internal/asynqread"
	"github.com/headway-go/headway/worker/metrics"
)

// mostQueues is the most asynq queues that a snapshot counts.
const mostQueues = 100

// Read reads all fields of a metrics.Snapshot but PolicyVersion and UsefulWorkers. rdb is the Redis of asynq's tasks. Errors and cost
// are those of worker.Middleware.Snapshot.
func Read(ctx context.Context, limiter *throttle.Limiter, rdb redis.UniversalClient) (s metrics.Snapshot, err error) {
	if s.Survey, err = survey.Read(ctx, limiter); err != nil {
		return metrics.Snapshot{}, err
	}
	queues, more, err := asynqread.CountTasks(ctx, rdb, mostQueues)
	if err != nil {
		return metrics.Snapshot{}, err
	}
	s.Survey.Partial = s.Survey.Partial || more
	s.Queues = runnable(s.Survey, queues)
	s.Oldest, err = oldest(ctx, rdb, s.Survey)
	return s, err
}

// runnable counts the tasks that could start now: pending tasks, which no limit holds, and waiting
// tasks whose rules have room. A paused queue has none.
func runnable(now survey.Survey, queues []asynqread.QueueTasks) []metrics.QueueTasks {
	ready := map[string]int64{}
	for _, q := range now.Queues {
		ready[q.First.Queue] += q.Ready
	}
	list := make([]metrics.QueueTasks, 0, len(queues))
	for _, q := range queues {
		one := metrics.QueueTasks{Name: q.Name, Active: q.Active}
		if !q.Paused {
			one.Runnable = q.Pending + ready[q.Name]
		}
		list = append(list, one)
	}
	return list
}

// oldest returns when the longest wait under each rule began, by the first tasks of the fullest scopes.
// The beginning is that in the task's headers.
func oldest(ctx context.Context, rdb redis.UniversalClient, now survey.Survey) ([]time.Time, error) {
	tasks := make([]asynqread.TaskRef, len(now.Queues))
	for i, q := range now.Queues {
		tasks[i].Queue, tasks[i].ID = q.First.Queue, q.First.ID
	}
	headers, err := asynqread.Headers(ctx, rdb, tasks, queue.HeaderDue)
	if err != nil {
		return nil, err
	}
	oldest := slices.Repeat([]time.Time{{}}, len(now.Rules))
	for i, q := range now.Queues {
		since, err := time.Parse(time.RFC3339Nano, headers[i])
		if err != nil {
			continue // a task of another program: its wait has no known beginning
		}
		for _, r := range q.Rules {
			if !since.IsZero() && (oldest[r].IsZero() || since.Before(oldest[r])) {
				oldest[r] = since
			}
		}
	}
	return oldest, nil
}
