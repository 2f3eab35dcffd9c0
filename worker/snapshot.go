package worker

import (
	"context"
	"errors"
	"slices"

	"github.com/headway-go/headway/worker/internal/snapshot"
	"github.com/headway-go/headway/worker/metrics"
)

// errIdle is the error of a snapshot before Begin and after End.
var errIdle = errors.New("worker: no server runs")

// Snapshot reads the state of the limits, of the waiting tasks and of asynq's queues, for
// metrics.Config. It sets all fields of a metrics.Snapshot but PolicyVersion. It changes nothing. Tasks
// whose rules have room count as runnable in the asynq queue of the first task of their scope. The
// error is Redis's.
//
// Costs what survey.Read does, one command and three for each of 100 queues, and one for each of
// the 200 fullest scopes.
func (t *Middleware) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	s, err := snapshot.Read(ctx, t.cfg.Limiter, t.cfg.Redis)
	if err == nil {
		s.UsefulWorkers = t.useful(s.Queues)
	}
	return s, err
}

// useful returns how many workers of this process's size the tasks of its queues keep busy.
func (t *Middleware) useful(queues []metrics.QueueTasks) float64 {
	slots, tasks := t.concurrency.Load(), int64(0)
	if slots == 0 {
		return 0
	}
	own := t.queues.Own()
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
