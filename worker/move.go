package worker

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// MoveTo moves the task to another queue, under the same id, type, payload, headers,
// retention, deadline, time-out and unique lock, with the retries that it has left. It waits
// there as any task of package queue, in a new place, and its patience begins anew. A
// task that stands in that queue already waits on. asynq counts the task as processed
// here.
//
// The queue's workers must be Headway's. A task whose id another task has there stays
// where it is and waits on; that is logged, and told as Observer.Failed("move").
func MoveTo(name string) MaxWaitPolicy {
	return func(_ context.Context, w Expired) Action {
		if name == "" || name == w.Queue {
			return Action{}
		}
		return Action{becameMoved, func(ctx context.Context, t *Middleware, j *job, w Expired) (bool, error) {
			if err := t.move(ctx, j, name); err != nil {
				t.observer.Failed("move")
				t.log.WarnContext(ctx, "max wait exceeded, but the task cannot be moved; it keeps waiting",
					"queue", j.queue, "task_id", j.id, "to", name, "error", err)
				return false, nil
			}
			t.log.InfoContext(ctx, "task moved: max wait exceeded", "queue", j.queue, "task_id", j.id, "type", j.task.Type(),
				"to", name, "why", w.String())
			t.moves.Go(func() { t.followMove(j.queue, name, j.id) })
			// Limited, so that no ErrorHandler is told.
			return true, errors.Join(newLimited(j, w.Rule, time.Now()), asynq.RevokeTask)
		}}
	}
}

// A task is moved in three steps: it is enqueued in the other queue, where asynq keeps
// it for a while; it is taken from here; and then it is let go there. Wherever a crash
// comes between, it is there or here. asynq brings the one here back sooner than it lets
// the other go; its move is then done again, and finds it there: it does not run twice.
const (
	// moveStay is longer than asynq takes to bring a killed task back.
	moveStay = 5 * time.Minute
	// followMost is how long it is looked whether the task has gone from here.
	followMost  = 2 * time.Second
	followPause = 25 * time.Millisecond
)

const becameMoved = "moved"

var errIDTaken = errors.New("another task has its id there")

func (t *Middleware) move(ctx context.Context, j *job, to string) error {
	info, err := t.inspector.GetTaskInfo(j.queue, j.id)
	if err != nil {
		return err
	}
	c := carried{
		ID: j.id, Type: j.task.Type(), Payload: j.task.Payload(), At: time.Now().Add(moveStay),
		Headers: movedHeaders(j, info), Retention: info.Retention, Unique: j.lock().Left(ctx, t.cfg.Redis),
	}
	err = t.enqueue(ctx, to, c)
	if !errors.Is(err, asynq.ErrTaskIDConflict) {
		return err
	}
	there, err := t.inspector.GetTaskInfo(to, j.id)
	if err != nil {
		return err
	}
	if !c.is(there) {
		return errIDTaken
	}
	return nil // moved before, by a run that a crash cut off
}

// movedHeaders are those of a task in the form that package queue makes, whose wait
// begins now.
func movedHeaders(j *job, info *asynq.TaskInfo) map[string]string {
	h := ownHeaders(j, info)
	if j.own {
		h = maps.Clone(j.task.Headers())
		h[queue.HeaderMaxRetry] = strconv.Itoa(max(j.budget-j.retried, 0))
	}
	h[queue.HeaderDue] = time.Now().UTC().Format(time.RFC3339Nano)
	return h
}

// is tells whether a task is what was carried, and not another of its id.
func (c carried) is(info *asynq.TaskInfo) bool {
	return info.Type == c.Type && string(info.Payload) == string(c.Payload) &&
		maps.Equal(lasting(info.Headers), lasting(c.Headers))
}

// lasting are the headers that do not depend on when a task was moved.
func lasting(headers map[string]string) map[string]string {
	h := maps.Clone(headers)
	delete(h, queue.HeaderDue)
	delete(h, queue.HeaderMaxRetry)
	return h
}

// followMove lets a moved task go in its new queue, as soon as it has gone from its old one.
func (t *Middleware) followMove(from, to, id string) {
	for began := time.Now(); time.Since(began) < followMost; {
		if !asynqx.Sleep(context.Background(), followPause) {
			return
		}
		if _, err := t.inspector.GetTaskInfo(from, id); errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
			_ = t.inspector.RunTask(to, id) // otherwise it comes by itself
			t.servers.Kick()
			return
		}
	}
}
