package control

import (
	"context"
	"errors"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/waiting"
)

// Task is the state of a task, and what it waits for. docs/json.md has its fields.
type Task struct {
	ID        string       `json:"id"`
	Queue     string       `json:"queue"`
	Type      string       `json:"type"`
	State     string       `json:"state"`
	Scope     string       `json:"scope,omitempty"`
	ScopeFrom string       `json:"scope_from,omitempty"`
	Cost      int64        `json:"cost,omitempty"`
	Costs     policy.Costs `json:"costs,omitempty"`
	Priority  int          `json:"priority,omitempty"`
	Turn      string       `json:"turn"`
	Position  int64        `json:"position,omitempty"`
	Start     Time         `json:"start,omitzero"`
	Range
	Wait
	NoWorker      bool   `json:"no_worker,omitempty"`
	NextProcessAt Time   `json:"next_process_at,omitzero"`
	LastError     string `json:"last_error,omitempty"`
	Error         string `json:"error,omitempty"`
	Pause
	Users
	NoRule
}

// The states of a task's turn.
const (
	TurnNone       = "none"
	TurnWaiting    = "waiting"
	TurnDispatched = "dispatched"
)

// Task returns the tasks of an id in some of asynq's queues, or in all if none is named. It returns a *NoTaskError if no queue has one
// that the actor may see. Costs two calls for each queue, what Servers costs, and some more for each task.
func (s *Service) Task(ctx context.Context, actor Actor, id string, queues ...string) (list []Task, err error) {
	if len(queues) == 0 {
		if queues, err = s.inspector.Queues(); err != nil {
			return nil, err
		}
	}
	found, err := s.find(ctx, id, queues)
	if err != nil {
		return nil, err
	}
	for _, info := range found {
		task, err := s.task(ctx, info)
		if err != nil {
			return nil, err
		}
		if s.May(actor, VerbSee, task.Scope) == nil {
			list = append(list, task)
		}
	}
	if len(list) == 0 {
		return nil, &NoTaskError{ID: id, Queues: queues}
	}
	return list, nil
}

// NoTaskError is the error for an id that no queue has a task of.
type NoTaskError struct {
	ID     string
	Queues []string // the queues that were searched
}

func (e *NoTaskError) Error() string { return "no queue has a task " + e.ID }

// find searches queues for the task, with two calls for each.
func (s *Service) find(ctx context.Context, id string, queues []string) (found []*asynq.TaskInfo, err error) {
	for _, name := range queues {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		info, err := s.inspector.GetTaskInfo(name, id)
		switch {
		case err == nil:
			found = append(found, info)
		case !waiting.IsGone(err):
			return nil, err
		}
	}
	return found, nil
}

func (s *Service) task(ctx context.Context, info *asynq.TaskInfo) (Task, error) {
	r := Task{
		ID: info.ID, Queue: info.Queue, Type: info.Type, State: info.State.String(), Turn: TurnNone,
		NextProcessAt: At(info.NextProcessAt), LastError: info.LastErr,
	}
	err := s.turn(ctx, info, &r)
	if err == nil && r.Waits() {
		served, known := s.Serves(ctx, info.Queue)
		r.NoWorker = known && !served
	}
	return r, err
}

// turn reads what the task spends and its place in the queue. A fault of the task itself is part of the answer, and no error.
func (s *Service) turn(ctx context.Context, info *asynq.TaskInfo, r *Task) error {
	spec, limited, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	if err != nil {
		r.Error = Plain(err)
		return nil
	}
	if !limited || spec.Scope == "" {
		if spec.Scope, r.ScopeFrom, err = s.scopeFromWorker(ctx, info); err != nil || spec.Scope == "" {
			return err
		}
	}
	r.Scope, r.Cost, r.Costs, r.Priority = spec.Scope, spec.Cost, spec.Costs, spec.Priority
	r.Users = s.users(spec.Scope)
	limits, _ := s.Limits(ctx) // a pause is shown without its author
	r.Pause = s.PauseOf(spec.Scope, limits)
	got, err := inspect.Of(s.limiter.Waitlist()).Task(ctx, waitlist.Ref{Scope: spec.Scope, Queue: info.Queue, ID: info.ID})
	if IsUnmatched(err) {
		r.Error = Plain(err)
		if r.NoRule, err = s.noRule(ctx, spec.Scope); r.Waits() {
			r.Reason = ReasonUnmatched
		}
		return err
	}
	if err != nil {
		return err
	}
	switch {
	case got.Dispatched && r.Waits():
		r.Turn = TurnDispatched
	case got.Waits:
		r.Turn, r.Position = TurnWaiting, got.Ahead+1
		r.Start, r.Range = expected(got.At, got.Expected)
		r.Wait = waitOf(got.Binding, got.Paused)
		s.askBreaker(ctx, spec.Scope, &r.Wait)
		if info, err := s.inspector.GetQueueInfo(r.Queue); err == nil && info.Paused {
			r.Start, r.Range, r.Wait = Time{}, Range{}, Wait{Reason: ReasonQueuePaused}
		}
	case r.Waits():
		if err := s.costError(spec); err != nil { // it lost its place
			r.Reason, r.Error = ReasonCost, Plain(err)
		}
	}
	return nil
}

// costError returns a *policy.CostError for a task that the limits can never admit.
func (s *Service) costError(spec queue.Spec) (err error) {
	scope, err := policy.ParseScope(spec.Scope)
	if err == nil && len(spec.Costs) > 0 {
		err = s.limiter.Policy().CheckCosts(scope, spec.Costs)
	} else if err == nil {
		err = s.limiter.Policy().Check(scope, spec.Cost)
	}
	if errors.As(err, new(*policy.CostError)) {
		return err
	}
	return nil // another fault was reported before
}

// Waits reports whether a worker may still take the task, now or at its own scheduled time.
func (t *Task) Waits() bool { return waits(t.State) }

func waits(state string) bool {
	return slices.Contains([]string{asynq.TaskStatePending.String(), asynq.TaskStateScheduled.String(), asynq.TaskStateRetry.String()}, state)
}

// scopeFromWorker returns the scope that a worker's Spends gave to a task, from its last error or its place in the queue. Both results
// are empty if no worker has put the task back yet.
func (s *Service) scopeFromWorker(ctx context.Context, info *asynq.TaskInfo) (scope, from string, err error) {
	if scope, is := worker.WaitingScope(info.LastErr); is {
		return scope, "last_error", nil
	}
	if !waits(info.State.String()) {
		return "", "", nil
	}
	if scope, err = s.placeOf(ctx, info.Queue, info.ID); scope != "" {
		from = "line"
	}
	return scope, from, err
}
