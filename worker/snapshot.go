package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/survey"
	"github.com/headway-go/headway/worker/internal/asynqread"
	"github.com/headway-go/headway/worker/metrics"
)

// mostQueues is the most asynq queues that a snapshot counts.
const mostQueues = 100

// errIdle is the error of a snapshot before Begin and after End.
var errIdle = errors.New("worker: no server runs")

// Snapshot reads the state of the limits, of the waiting tasks and of asynq's queues, for metrics.Config. It sets all fields of a
// metrics.Snapshot but PolicyVersion. It changes nothing. Tasks whose rules have room count as runnable in the asynq queue of the
// first task of their scope. The error is Redis's.
//
// Costs what survey.Read does, one command and three for each of 100 queues, and one for each of the 200 fullest scopes.
func (m *Middleware) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	limits, err := survey.Read(ctx, m.cfg.Limiter)
	if err != nil {
		return metrics.Snapshot{}, err
	}
	queues, more, err := asynqread.CountTasks(ctx, m.cfg.Redis, mostQueues)
	if err != nil {
		return metrics.Snapshot{}, err
	}
	limits.Partial = limits.Partial || more
	s := metrics.Snapshot{Survey: limits, Queues: runnable(limits, queues)}
	s.UsefulWorkers = m.useful(s.Queues)
	s.Oldest, err = oldest(ctx, m.cfg.Redis, limits)
	return s, err
}

// useful returns how many workers of this process's size the tasks of its queues keep busy.
func (m *Middleware) useful(queues []metrics.QueueTasks) float64 {
	slots, tasks := m.concurrency.Load(), int64(0)
	if slots == 0 {
		return 0
	}
	own := m.queues.Own()
	for _, q := range queues {
		if slices.Contains(own, q.Name) {
			tasks += q.Active + q.Runnable
		}
	}
	return float64(tasks) / float64(slots)
}

// snapshot is Middleware.Snapshot while a server runs, with the newest version of the limits.
func (l *Limits) snapshot(ctx context.Context) (metrics.Snapshot, error) {
	if !l.running.Load() {
		return metrics.Snapshot{}, errIdle
	}
	s, err := l.Snapshot(ctx)
	if err == nil {
		s.PolicyVersion, err = l.source.Newest(ctx)
	}
	if err != nil && l.running.Load() {
		l.metrics.Failed("snapshot")
	}
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
		counted := metrics.QueueTasks{Name: q.Name, Active: q.Active}
		if !q.Paused {
			counted.Runnable = q.Pending + ready[q.Name]
		}
		list = append(list, counted)
	}
	return list
}

// oldest returns when the longest wait under each rule began, by the headers of the first tasks of the fullest scopes.
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
