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

// asynq archives a task on its last attempt before it asks whether the error was
// a failure. So a limited task that asynq itself enqueued, and that is on its
// last attempt, is carried over into the form that package queue makes: the same
// id, type, payload, headers and queue, and its budget in a header.
//
// No call of asynq's moves a task that is active, and an id can't be enqueued
// while its task is. So a carrier with all of the task in it is enqueued first;
// then the task is revoked; then the carrier, when it runs, enqueues the task
// anew. Wherever a crash comes between, the task or its carrier is still there.
const (
	// neverCut and neverByAsynq keep asynq from ending what waits; see package queue.
	neverCut     = 10 * 365 * 24 * time.Hour
	neverByAsynq = math.MaxInt32

	// arriveTries bounds how often a carrier looks whether its task has gone.
	arriveTries = 40
	arrivePause = 25 * time.Millisecond
)

// carried is a task on its way, as its carrier's payload.
type carried struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Payload   []byte            `json:"payload"`
	Headers   map[string]string `json:"headers"`
	Retention time.Duration     `json:"retention_ns"`
	Unique    time.Duration     `json:"unique_ns"`
	At        time.Time         `json:"at"`
}

// check refuses what no worker has put into a carrier: whoever may write to Redis can make one. All else that a
// task may not be is found when it is picked up itself.
func (c carried) check() error {
	if queue.IsReservedType(c.Type) {
		return fmt.Errorf("headway: a carrier of task %q: %w", c.ID, &queue.ReservedTypeError{Type: c.Type})
	}
	if c.Headers[queue.HeaderScope] == "" {
		return fmt.Errorf("headway: a carrier of task %q, which has no scope; Headway did not make it", c.ID)
	}
	return nil
}

// reenqueue hands a task on its last attempt to a carrier and revokes it. If that
// can't be done the task stays in its handler until it can: nothing is lost, and
// while Redis is away there is nothing else to do.
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
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode task %s: %w", j.id, err)
	}
	_, err = t.client.EnqueueContext(ctx, asynq.NewTask(asynqx.CarrierType, payload),
		asynq.TaskID(asynqx.CarrierID(j.id)), asynq.Queue(j.queue), asynq.MaxRetry(neverByAsynq), asynq.Timeout(neverCut))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil // sent before, by a run that a crash cut off
	}
	return err
}

// ownHeaders are the task's own and what asynq's options said: the retries it
// has left, its deadline and time-out.
func ownHeaders(j *job, info *asynq.TaskInfo) map[string]string {
	h := maps.Clone(j.task.Headers())
	if h == nil {
		h = map[string]string{}
	}
	h[queue.HeaderID] = j.id
	h[queue.HeaderScope] = j.scope
	h[queue.HeaderCost] = strconv.FormatInt(max(j.cost, 1), 10)
	if j.costs != nil {
		h[queue.HeaderCost] = j.costs.String()
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

// finishReenqueue runs a carrier: it enqueues the task that it carries, once that task is
// gone from its old form.
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
		err := t.enqueue(ctx, name, c)
		if err == nil {
			return nil
		}
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			t.observer.Failed("carry") // it may be there all the same: look soon, before it has run
		} else if info, err := t.inspector.GetTaskInfo(name, c.ID); err == nil {
			if c.became(info) {
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
		// Another task took the lock in the moment between: both were wanted.
	}
	_, err := t.client.EnqueueContext(ctx, task, opts...)
	return err
}

// became tells whether a task is what its carrier enqueues: a call before did that, whose
// reply was lost. Once more would have it run twice.
func (c carried) became(info *asynq.TaskInfo) bool {
	return info.MaxRetry == neverByAsynq && c.is(info)
}

// clearWay removes the old form of a task whose revocation never reached Redis:
// asynq's recoverer has archived it as a task whose worker died.
func (t *Middleware) clearWay(name string, info *asynq.TaskInfo) {
	if info.State != asynq.TaskStateArchived || info.LastErr != asynq.ErrLeaseExpired.Error() {
		return
	}
	if err := t.inspector.DeleteTask(name, info.ID); err != nil {
		t.observer.Failed("carry")
	}
}
