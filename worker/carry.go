package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// asynq archives a task that fails on its last attempt before it asks whether the error was a failure.
// So a limited task that another program enqueued, and that is on its last attempt, is converted into
// the form that package queue writes: the same id, type, payload, headers and queue, with the retry
// budget in a header.
//
// asynq has no call that moves an active task, and rejects an id whose task still exists. So the
// worker first enqueues a carrier that contains the whole task, then revokes the task. When the
// carrier runs, it enqueues the task anew. Whenever a crash happens, the task or its carrier still
// exists.
const (
	// neverCut and neverByAsynq keep asynq from ending a task that waits; see package queue.
	neverCut     = 10 * 365 * 24 * time.Hour
	neverByAsynq = math.MaxInt32

	// arriveTries bounds how often a carrier checks whether its task is gone.
	arriveTries = 40
	arrivePause = 25 * time.Millisecond
)

// carried is a task in transit, as the payload of its carrier.
type carried struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Payload   []byte            `json:"payload"`
	Headers   map[string]string `json:"headers"`
	Retention time.Duration     `json:"retention_ns"`
	Unique    time.Duration     `json:"unique_ns"`
	At        time.Time         `json:"at"`
	Queued    bool              `json:"queued"` // it waits for its turn, and not only until At
}

// check rejects what no worker puts into a carrier: any program with write access to Redis can enqueue
// one. Everything else about the task is checked when it is picked up itself.
func (c carried) check() error {
	if queue.IsReservedType(c.Type) {
		return fmt.Errorf("headway: a carrier of task %q: %w", c.ID, &queue.ReservedTypeError{Type: c.Type})
	}
	if _, has := c.Headers[queue.HeaderScope]; !has {
		return fmt.Errorf("headway: a carrier of task %q, which has no scope; Headway did not make it", c.ID)
	}
	return nil
}

// reenqueue hands a task on its last attempt to a carrier and revokes it. While that fails, the task
// stays in its handler: nothing is lost, and while Redis is away the worker could do nothing else.
func (t *Middleware) reenqueue(ctx context.Context, j *job, limited *Limited) error {
	for pause := arrivePause; ; pause = min(2*pause, outagePause) {
		err := t.send(ctx, j, limited)
		if err == nil {
			return errors.Join(limited, asynq.RevokeTask)
		}
		t.observer.Failed("carry")
		if !asynqx.Sleep(ctx, pause) {
			<-ctx.Done() // asynq takes the task back itself: at shutdown, or at its deadline
			return ctx.Err()
		}
	}
}

func (t *Middleware) send(ctx context.Context, j *job, limited *Limited) error {
	info, err := t.inspector.GetTaskInfo(j.queue, j.id)
	if err != nil {
		return err
	}
	c := carried{
		ID: j.id, Type: j.task.Type(), Payload: j.task.Payload(), At: limited.At,
		Headers: ownHeaders(j, info), Retention: info.Retention, Unique: j.lock().Left(ctx, t.cfg.Redis),
		Queued: j.queued,
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode task %s: %w", j.id, err)
	}
	_, err = t.client.EnqueueContext(ctx, asynq.NewTask(asynqx.CarrierType, payload),
		asynq.TaskID(asynqx.CarrierID(j.id)), asynq.Queue(j.queue), asynq.MaxRetry(neverByAsynq), asynq.Timeout(neverCut))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return t.sentBefore(j, err)
	}
	return err
}

// sentBefore returns nil if a carrier of the task is under way, sent by a run that a crash interrupted.
// One that a person archived would never bring the task back, and makes room for another.
func (t *Middleware) sentBefore(j *job, conflict error) error {
	switch carrier := asynqx.CarrierID(j.id); t.stateOf(j.queue, carrier) {
	case asynq.TaskStateArchived:
		return errors.Join(conflict, t.inspector.DeleteTask(j.queue, carrier))
	case 0:
		return conflict
	}
	return nil
}

// ownHeaders returns the headers of the task, and what its asynq options said: the remaining retries,
// its deadline and its time-out.
func ownHeaders(j *job, info *asynq.TaskInfo) map[string]string {
	h := maps.Clone(j.task.Headers())
	if h == nil {
		h = map[string]string{}
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
	h[queue.HeaderMaxRetry] = strconv.Itoa(max(info.MaxRetry-info.Retried, 0))
	h[queue.HeaderDue] = time.Now().UTC().Format(time.RFC3339Nano)
	if !j.since.IsZero() {
		h[queue.HeaderDue] = j.since.UTC().Format(time.RFC3339Nano)
	}
	if !info.Deadline.IsZero() {
		h[queue.HeaderDeadline] = info.Deadline.UTC().Format(time.RFC3339Nano)
	}
	if info.Timeout > 0 {
		h[queue.HeaderTimeout] = info.Timeout.String()
	}
	return h
}

// finishReenqueue runs a carrier: it enqueues the carried task, once the old form of that task is
// gone.
func (t *Middleware) finishReenqueue(ctx context.Context, carrier *asynq.Task) error {
	var c carried
	if err := json.Unmarshal(carrier.Payload(), &c); err != nil {
		return permanent(fmt.Errorf("headway: a carrier's payload can't be read: %w", err))
	}
	if id, _ := asynq.GetTaskID(ctx); id != asynqx.CarrierID(c.ID) {
		return permanent(fmt.Errorf("headway: carrier %q says that it carries task %q; Headway did not make it", id, c.ID))
	}
	if err := c.check(); err != nil {
		return permanent(err)
	}
	name, _ := asynq.GetQueueName(ctx)
	for range arriveTries {
		err := t.enqueue(asynqx.WithCarrier(ctx, name, c.ID), name, c)
		if err == nil {
			t.catchUp(ctx, name, c)
			return nil
		}
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			t.observer.Failed("carry") // it may exist all the same: check soon, before it has run
		} else if info, err := t.inspector.GetTaskInfo(name, c.ID); err == nil {
			if c.became(info) {
				t.catchUp(ctx, name, c)
				return nil
			}
			t.clearWay(name, info)
		}
		if !asynqx.Sleep(ctx, arrivePause) || t.served(ctx).Err() != nil {
			break
		}
	}
	return &Limited{At: time.Now(), text: asynqx.WaitingText + " to bring back task " + c.ID}
}

// catchUp releases a carried task whose turn came while it did not exist: it was granted a start that
// it could not take, or has lost its place. asynq would bring it back at c.At, minutes later if its
// start could not be predicted.
func (t *Middleware) catchUp(ctx context.Context, name string, c carried) {
	if !c.Queued {
		return
	}
	j := &job{task: asynq.NewTaskWithHeaders(c.Type, c.Payload, c.Headers), id: c.ID, queue: name}
	if err := t.spends(j); err != nil {
		return // it fails when it is picked up
	}
	queued, _, err := t.cfg.Limiter.Waitlist().Standing(ctx, j.ask().Ref())
	if err != nil {
		t.observer.Failed("carry")
	}
	if queued || t.stateOf(name, c.ID) != asynq.TaskStateScheduled {
		return // or it has run already: asynq may keep it, and would run it once more
	}
	t.release(ctx, name, c.ID)
}

// stateOf returns asynq's state of a task, 0 if that is not known.
func (t *Middleware) stateOf(name, id string) asynq.TaskState {
	info, err := t.inspector.GetTaskInfo(name, id)
	if err != nil {
		return 0
	}
	return info.State
}

// release puts a task into pending that would wait there for longer than it has to. One that does not
// wait any more stays as it is.
func (t *Middleware) release(ctx context.Context, name, id string) {
	_, _ = t.mover.Release(ctx, name, []string{id}) // else it comes by itself
	t.servers.Kick()
}

func (t *Middleware) enqueue(ctx context.Context, name string, c carried) error {
	task := asynq.NewTaskWithHeaders(c.Type, c.Payload, c.Headers)
	opts := []asynq.Option{
		asynq.TaskID(c.ID), asynq.Queue(name), asynq.MaxRetry(neverByAsynq), asynq.Timeout(neverCut),
		asynq.Retention(c.Retention), asynq.ProcessIn(delay(c.At, time.Now())),
	}
	if c.Unique >= time.Second {
		_, err := t.client.EnqueueContext(ctx, task, append(opts, asynq.Unique(c.Unique))...)
		if !errors.Is(err, asynq.ErrDuplicateTask) {
			return err
		}
		// Another task took the lock in between: both were wanted.
	}
	_, err := t.client.EnqueueContext(ctx, task, opts...)
	return err
}

// became reports whether info is the task that the carrier enqueues: an earlier call enqueued it and
// its reply was lost. To enqueue it once more would run it twice.
func (c carried) became(info *asynq.TaskInfo) bool {
	return info.MaxRetry == neverByAsynq && c.is(info)
}

// clearWay removes the old form of a task whose revocation never reached Redis: asynq's recoverer has
// archived it as the task of a worker that died.
func (t *Middleware) clearWay(name string, info *asynq.TaskInfo) {
	if info.State != asynq.TaskStateArchived || info.LastErr != asynq.ErrLeaseExpired.Error() {
		return
	}
	if err := t.inspector.DeleteTask(name, info.ID); err != nil {
		t.observer.Failed("carry")
	}
}
