package worker

import (
	"context"
	"errors"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// MoveTo moves the task to another queue. It keeps its id, type, payload, headers, retention, deadline, time-out, unique lock and
// remaining retries. There it waits as any task of package queue, in a new place, and its max wait starts anew. If the task is in
// that queue already, it waits on. asynq counts it as processed in the old queue.
//
// All workers of the new queue must be Headway's. If another task there has its id, the task stays
// where it is and waits on. That is logged, and reported as Observer.Failed("move").
func MoveTo(name string) MaxWaitPolicy {
	return func(_ context.Context, w Expired) Action {
		if name == "" || name == w.Queue {
			return Action{}
		}
		return Action{becameMoved, func(ctx context.Context, m *Middleware, j *job, w Expired) (bool, error) {
			if err := m.move(ctx, j, name); err != nil {
				m.observer.Failed("move")
				m.log.WarnContext(ctx, "max wait exceeded, but the task cannot be moved; it keeps waiting",
					"queue", j.queue, "task_id", j.id, "to", name, "error", err)
				return false, nil
			}
			m.log.InfoContext(ctx, "task moved: max wait exceeded", "queue", j.queue, "task_id", j.id, "type", j.task.Type(),
				"to", name, "why", w.String())
			asynqx.ClientOf(ctx).OnEnd(j.queue, j.id, func() { m.releaseMoved(context.WithoutCancel(ctx), name, j.id) })
			// A Limited, so that no ErrorHandler is called.
			return true, errors.Join(newLimited(j, w.Rule, time.Now()), asynq.RevokeTask)
		}}
	}
}

// A move has three steps: enqueue the task in the new queue, where asynq holds it for a while; remove it from the old queue; release it
// in the new one. Whenever a crash happens, the task is in one of the two. asynq brings the task in the old queue back before it
// releases the other. The move is then repeated and finds the task there, so it does not run twice.
const (
	becameMoved = "moved"
	// moveStay is longer than asynq takes to bring a killed task back.
	moveStay = 5 * time.Minute
)

// neverCut and neverByAsynq keep asynq from ending a task that waits; see package queue.
const (
	neverCut     = 10 * 365 * 24 * time.Hour
	neverByAsynq = math.MaxInt32
)

var errIDTaken = errors.New("another task has its id there")

func (m *Middleware) move(ctx context.Context, j *job, to string) error {
	info, err := m.inspector.GetTaskInfo(j.queue, j.id)
	if err != nil {
		return err
	}
	task := moved{
		id: j.id, kind: j.task.Type(), payload: j.task.Payload(), headers: movedHeaders(j, info),
		retention: info.Retention, unique: j.lock().Left(ctx, m.cfg.Redis),
	}
	err = m.enqueue(ctx, to, task)
	if !errors.Is(err, asynq.ErrTaskIDConflict) {
		return err
	}
	there, err := m.inspector.GetTaskInfo(to, j.id)
	if err != nil {
		return err
	}
	if !task.is(there) {
		return errIDTaken
	}
	return nil // moved before, by a run that a crash interrupted
}

// moved is a task in the form in which it is enqueued in another queue.
type moved struct {
	id, kind          string
	payload           []byte
	headers           map[string]string
	retention, unique time.Duration
}

// enqueue enqueues a moved task in the form that package queue writes: asynq never ends it.
func (m *Middleware) enqueue(ctx context.Context, name string, mv moved) error {
	task := asynq.NewTaskWithHeaders(mv.kind, mv.payload, mv.headers)
	opts := []asynq.Option{
		asynq.TaskID(mv.id), asynq.Queue(name), asynq.MaxRetry(neverByAsynq), asynq.Timeout(neverCut),
		asynq.Retention(mv.retention), asynq.ProcessIn(moveStay),
	}
	if mv.unique >= time.Second {
		_, err := m.client.EnqueueContext(ctx, task, append(opts, asynq.Unique(mv.unique))...)
		if !errors.Is(err, asynq.ErrDuplicateTask) {
			return err
		}
		// Another task took the lock in between: both were wanted.
	}
	_, err := m.client.EnqueueContext(ctx, task, opts...)
	return err
}

// movedHeaders returns the headers of a task in the form that package queue writes, with the remaining retries, the deadline and the
// time-out of its asynq options. Its wait begins now.
func movedHeaders(j *job, info *asynq.TaskInfo) map[string]string {
	h := maps.Clone(j.task.Headers())
	if h == nil {
		h = map[string]string{}
	}
	h[queue.HeaderDue] = time.Now().UTC().Format(time.RFC3339Nano)
	h[queue.HeaderMaxRetry] = strconv.Itoa(max(j.retriesLeft(), 0))
	if j.own {
		return h
	}
	h[queue.HeaderID] = j.id
	h[queue.HeaderScope] = j.scope
	switch {
	case j.scope == "": // whatever names its scope later says its cost
	case j.costs != nil:
		h[queue.HeaderCost] = j.costs.String()
	default:
		h[queue.HeaderCost] = strconv.FormatInt(max(j.cost, 1), 10)
	}
	if !info.Deadline.IsZero() {
		h[queue.HeaderDeadline] = info.Deadline.UTC().Format(time.RFC3339Nano)
	}
	if info.Timeout > 0 {
		h[queue.HeaderTimeout] = info.Timeout.String()
	}
	return h
}

// is reports whether info is the moved task, and not another task with its id.
func (m moved) is(info *asynq.TaskInfo) bool {
	return info.Type == m.kind && string(info.Payload) == string(m.payload) &&
		maps.Equal(lasting(info.Headers), lasting(m.headers))
}

// lasting returns the headers that do not depend on the time of the move.
func lasting(headers map[string]string) map[string]string {
	h := maps.Clone(headers)
	delete(h, queue.HeaderDue)
	delete(h, queue.HeaderMaxRetry)
	return h
}

// releaseMoved releases a moved task in its new queue.
func (m *Middleware) releaseMoved(ctx context.Context, queue, id string) {
	if there, err := m.inspector.GetTaskInfo(queue, id); err == nil && there.State == asynq.TaskStateScheduled { // else it has been taken, and may have ended
		m.release(ctx, queue, id)
	}
}
