// Package waiting changes waiting tasks for people: it cancels them, starts them next, and gives them other priorities and scopes.
package waiting

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Tasks are the waiting tasks of a Redis. A change never loses a task or starts it twice: it leaves a task that was granted its start,
// or that a worker has. Tasks is safe for concurrent use, from any process.
type Tasks struct {
	rdb       redis.UniversalClient
	limiter   *throttle.Limiter
	inspector *asynq.Inspector
}

// New returns the waiting tasks of a Redis under a limiter's limits. It does no I/O and takes no ownership.
func New(rdb redis.UniversalClient, limiter *throttle.Limiter) *Tasks {
	return &Tasks{rdb: rdb, limiter: limiter, inspector: asynq.NewInspectorFromRedisClient(rdb)}
}

// Outcome is the outcome of a change for one task.
type Outcome string

// The outcomes. All but Changed left the task as it was.
const (
	Changed    Outcome = "changed"
	Gone       Outcome = "gone"       // there is no such task
	Active     Outcome = "active"     // a worker has it
	Dispatched Outcome = "dispatched" // it was granted its start
	Pending    Outcome = "pending"    // a worker takes it next
	Ended      Outcome = "ended"      // it is archived (which RunNext changes) or completed, or waits for its group
	NoScope    Outcome = "no_scope"   // no header names its scope, so it can't be changed
)

var outcomes = map[asynqx.Outcome]Outcome{
	asynqx.Moved: Changed, asynqx.Gone: Gone, asynqx.Active: Active, asynqx.Pending: Pending, asynqx.Elsewhere: Ended,
}

// heldFor bounds the changes of one task, so that it is back before asynq takes it for lost.
const heldFor = 10 * time.Second

// Cancel deletes a waiting task, with its place in the queue and its unique lock. The error is Redis's. Costs some round trips.
func (w *Tasks) Cancel(ctx context.Context, name, id string) (Outcome, error) {
	info, out, err := w.info(name, id)
	if out != "" || err != nil {
		return out, err
	}
	switch info.State {
	case asynq.TaskStateArchived, asynq.TaskStateCompleted, asynq.TaskStateAggregating:
		return Ended, nil
	}
	if err := w.inspector.DeleteTask(name, id); err != nil {
		if _, out, infoErr := w.info(name, id); infoErr == nil && out != "" { // it has gone or become active meanwhile
			return out, nil
		}
		return "", err
	}
	if ask, spends, err := waiterOf(info); err == nil && spends {
		_ = w.report(ctx, ask, waitlist.Gone) // otherwise a worker takes its place out a second or two later
	}
	return Changed, nil
}

// info returns a task, or the outcome of any change of it: Gone or Active.
func (w *Tasks) info(name, id string) (*asynq.TaskInfo, Outcome, error) {
	info, err := w.inspector.GetTaskInfo(name, id)
	switch {
	case IsGone(err):
		return nil, Gone, nil
	case err == nil && info.State == asynq.TaskStateActive:
		return nil, Active, nil
	}
	return info, "", err
}

// IsGone reports whether an error of asynq says that there is no such task.
func IsGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// RunNext starts a task before all others that wait for the same limits, as soon as those admit it. It moves the task to the front of
// its queue, behind those moved there before. A task that waits for a time of its own, and not for limits, becomes pending. So does one
// that is archived; its next failure is final again if it had used up its retries. The error is Redis's, or one of
// policy.Policy.Check. Costs some twenty round trips.
func (w *Tasks) RunNext(ctx context.Context, name, id string) (Outcome, error) {
	info, out, err := w.info(name, id)
	if out != "" || err != nil {
		return out, err
	}
	if info.State == asynq.TaskStateArchived {
		return Changed, w.inspector.RunTask(name, id)
	}
	return w.change(ctx, name, id, func(ask waitlist.Waiter) (map[string]string, waitlist.Waiter, error) {
		return nil, ask, requestOf(ask).Check(w.limiter.Policy())
	}, w.toFront)
}

// SetPriority changes the priority of a waiting task. The task goes behind those that already wait with its new priority, and keeps it
// when it is retried. The error is one of RunNext, or says that the priority is out of bounds.
func (w *Tasks) SetPriority(ctx context.Context, name, id string, priority int) (Outcome, error) {
	if priority < -policy.MaxPriority || priority > policy.MaxPriority {
		return "", fmt.Errorf("headway: priority %d is not from %d to %d", priority, -policy.MaxPriority, policy.MaxPriority)
	}
	return w.change(ctx, name, id, func(ask waitlist.Waiter) (map[string]string, waitlist.Waiter, error) {
		ask.Priority = priority
		text := ""
		if priority != 0 {
			text = strconv.Itoa(priority)
		}
		return map[string]string{queue.HeaderPriority: text}, ask, nil
	}, w.join)
}

// SetScope changes the scope that a waiting task spends from. The task goes to the end of the new scope's queue. Its errors are those of
// RunNext: a rule must match the new scope, and its rules must admit the task's cost.
func (w *Tasks) SetScope(ctx context.Context, name, id, scope string) (Outcome, error) {
	return w.change(ctx, name, id, func(ask waitlist.Waiter) (map[string]string, waitlist.Waiter, error) {
		ask.Scope = scope
		return map[string]string{queue.HeaderScope: scope}, ask, requestOf(ask).Check(w.limiter.Policy())
	}, w.join)
}

// change changes the headers of a waiting task. It holds the task, so that no worker can take it; takes it out of its queue; changes its
// headers; puts it back; and gives it another place. If this process dies in between, asynq recovers the task, with old or new headers.
func (w *Tasks) change(ctx context.Context, name, id string,
	changed func(waitlist.Waiter) (map[string]string, waitlist.Waiter, error), place func(context.Context, waitlist.Waiter) error,
) (Outcome, error) {
	if err := asynqx.CheckRelease(); err != nil {
		return "", err
	}
	info, out, err := w.info(name, id)
	if out != "" || err != nil {
		return out, err
	}
	ask, spends, err := waiterOf(info)
	if err != nil {
		return "", err
	}
	if !spends {
		return NoScope, nil
	}
	headers, then, err := changed(ask)
	if err != nil {
		return "", err
	}
	if info.State == asynq.TaskStatePending {
		return w.changePending(ctx, name, id, headers)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldFor) // what has begun is finished
	defer cancel()
	held, was, err := asynqx.Hold(ctx, w.rdb, name, id)
	if err != nil || was != asynqx.Moved {
		return outcomes[was], err
	}
	return w.changeHeld(ctx, held, ask, then, headers, place)
}

// changePending changes the headers of a task without a place in a queue. It is scheduled meanwhile, and becomes the first pending one.
func (w *Tasks) changePending(ctx context.Context, name, id string, headers map[string]string) (Outcome, error) {
	if len(headers) == 0 {
		return Pending, nil
	}
	mover := asynqx.NewMover(w.rdb, func(string) {})
	if _, err := mover.Park(ctx, name, []string{id}, soon()); err != nil {
		return "", err
	}
	held, was, err := asynqx.Hold(ctx, w.rdb, name, id)
	if err != nil || was != asynqx.Moved {
		return outcomes[was], err
	}
	err = held.PutBack(ctx, headers, time.Now())
	if err == nil {
		_, err = mover.Release(ctx, name, []string{id}) // in a paused queue asynq does so
	}
	return Changed, err
}

func (w *Tasks) changeHeld(ctx context.Context, held *asynqx.Held, ask, then waitlist.Waiter, headers map[string]string,
	place func(context.Context, waitlist.Waiter) error,
) (Outcome, error) {
	stands, released, err := w.limiter.Waitlist().Standing(ctx, ask.Ref())
	if err == nil && stands && !released {
		if err = w.report(ctx, ask, waitlist.Left); err == nil {
			_, released, err = w.limiter.Waitlist().Standing(ctx, ask.Ref()) // a dispatch may have been faster
		}
	}
	if err != nil || released { // asynq's safety net recovers a task that has lost its place
		return Dispatched, errors.Join(err, held.PutBack(ctx, nil, soon()))
	}
	if !stands { // it waits for a time of its own
		if err := held.PutBack(ctx, headers, time.Time{}); err != nil || len(headers) > 0 {
			return Changed, err
		}
		return Changed, w.inspector.RunTask(held.Queue, held.ID)
	}
	if err := held.PutBack(ctx, headers, soon()); err != nil {
		return "", err
	}
	return Changed, place(ctx, then)
}

// soon returns when asynq recovers a task without a place.
func soon() time.Time { return time.Now().Add(waitlist.SafetyNet(0)) }

func (w *Tasks) report(ctx context.Context, ask waitlist.Waiter, what waitlist.What) error {
	return w.limiter.Waitlist().Report(ctx, ask.Ref().Provider(), []waitlist.News{{Ref: ask.Ref(), What: what}})
}

// join puts a task at the end of its line.
func (w *Tasks) join(ctx context.Context, ask waitlist.Waiter) error {
	joined, err := w.limiter.Waitlist().Join(ctx, []waitlist.Waiter{ask})
	return errors.Join(err, joined[0].Err)
}

// toFront puts a task before all others of its line, but behind those that were put there before.
func (w *Tasks) toFront(ctx context.Context, ask waitlist.Waiter) error {
	joined, err := w.limiter.Waitlist().Rejoin(ctx, ask, 0)
	return errors.Join(err, joined.Err)
}

func requestOf(ask waitlist.Waiter) throttle.Request {
	return throttle.Request{Scope: ask.Scope, Cost: ask.Cost, Costs: ask.Costs}
}

// waiterOf returns the waiter of a task by its headers, and false if they name no scope.
func waiterOf(info *asynq.TaskInfo) (waitlist.Waiter, bool, error) {
	spec, limited, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	return waitlist.Waiter{
		Scope: spec.Scope, Queue: info.Queue, ID: info.ID, Cost: spec.Cost, Costs: spec.Costs, Priority: spec.Priority,
	}, limited && spec.Scope != "", err
}
