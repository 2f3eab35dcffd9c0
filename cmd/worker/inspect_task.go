package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// taskReport is what "worker inspect -json task" prints; docs/json.md has its fields.
type taskReport struct {
	ID            string       `json:"id"`
	Queue         string       `json:"queue"`
	Type          string       `json:"type"`
	State         string       `json:"state"`
	Scope         string       `json:"scope,omitempty"`
	ScopeFrom     string       `json:"scope_from,omitempty"`
	Cost          int64        `json:"cost,omitempty"`
	Costs         policy.Costs `json:"costs,omitempty"`
	Priority      int          `json:"priority,omitempty"`
	MaxPriority   *int         `json:"max_priority,omitempty"`
	Turn          string       `json:"turn"`
	Place         int64        `json:"place,omitempty"`
	Start         string       `json:"start,omitempty"`
	Rule          string       `json:"rule,omitempty"`
	RuleScope     string       `json:"rule_scope,omitempty"`
	NextProcessAt string       `json:"next_process_at,omitempty"`
	LastError     string       `json:"last_error,omitempty"`
	Error         string       `json:"error,omitempty"`
	pausedBy
	usedBy
	unmatched
}

// What a task's turn can be.
const (
	turnNone     = "none"
	turnWaiting  = "waiting"
	turnReleased = "released"
	turnParked   = "parked"
)

func (i *inspection) task(ctx context.Context) error {
	found, queues, err := i.find(ctx)
	if err != nil {
		return explain(ctx, err, i.url)
	}
	if len(found) == 0 {
		return noTask(i.name, queues)
	}
	for n, info := range found {
		if n > 0 && !i.json {
			if _, err := fmt.Fprintln(i.out); err != nil {
				return fmt.Errorf("cannot write the result: %w", err)
			}
		}
		if err := i.tell(ctx, info); err != nil {
			return err
		}
	}
	return nil
}

// find looks for the task in every queue, two calls for each.
func (i *inspection) find(ctx context.Context) (found []*asynq.TaskInfo, queues []string, err error) {
	if queues, err = i.inspector.Queues(); err != nil {
		return nil, nil, err
	}
	for _, name := range queues {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		info, err := i.inspector.GetTaskInfo(name, i.name)
		switch {
		case err == nil:
			found = append(found, info)
		case !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound):
			return nil, nil, err
		}
	}
	return found, queues, nil
}

func noTask(id string, queues []string) error {
	const few = 10
	where := "there is no queue yet"
	if len(queues) > 0 {
		where = "queues: " + quoted(queues[:min(few, len(queues))])
	}
	if len(queues) > few {
		where += ", …"
	}
	return cli.Errorf("an id as enqueue -json prints it; a task that succeeded is gone, unless enqueue batch remembers it",
		"there is no task %s (%s)", cli.Quote(id), where)
}

// quoted is a list of names that others gave.
func quoted(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = cli.Quote(name)
	}
	return strings.Join(list, ", ")
}

// tell prints what is known of a task.
func (i *inspection) tell(ctx context.Context, info *asynq.TaskInfo) error {
	r := taskReport{
		ID: info.ID, Queue: info.Queue, Type: info.Type, State: info.State.String(), Turn: turnNone,
		NextProcessAt: stamp(info.NextProcessAt), LastError: info.LastErr,
	}
	lines := [][2]string{
		{"task", cli.Quote(r.ID)}, {"queue", cli.Quote(r.Queue)}, {"type", cli.Quote(r.Type)}, {"state", r.State},
	}
	turn, err := i.turn(ctx, info, &r)
	if err != nil {
		return err
	}
	lines = append(lines, turn...)
	if !info.NextProcessAt.IsZero() {
		lines = append(lines, [2]string{"due", i.due(r, info.NextProcessAt)})
	}
	if r.LastError != "" {
		lines = append(lines, [2]string{"last", cli.Quote(r.LastError)})
	}
	if r.Error != "" && !r.Unmatched {
		lines = append(lines, [2]string{"error", cli.Quote(r.Error)})
	}
	return i.print(r, lines)
}

// due tells when asynq brings the task by itself.
func (i *inspection) due(r taskReport, at time.Time) string {
	text := i.moment(at)
	if r.Turn != turnNone {
		text += ", unless its turn comes before"
	}
	return text
}

// turn learns what the task spends and where it stands. What is wrong with the task
// itself is a part of the report and no error.
func (i *inspection) turn(ctx context.Context, info *asynq.TaskInfo, r *taskReport) ([][2]string, error) {
	spec, limited, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	if err != nil {
		r.Error = plainly(err)
		return [][2]string{{"scope", "none in its headers"}}, nil
	}
	scope := ""
	if limited {
		scope = cli.Quote(spec.Scope) + ", cost " + costText(spec)
	} else if spec.Scope, r.ScopeFrom, err = i.found(ctx, info); err != nil {
		return nil, explain(ctx, err, i.url)
	} else if spec.Scope == "" {
		return [][2]string{{"scope", "not known yet: no header names it, and a worker's Spends, if there is one, decides it at pick-up"}}, nil
	} else {
		scope = cli.Quote(spec.Scope) + ", as a worker's Spends decided"
	}
	r.Scope, r.Cost, r.Costs, r.Priority = spec.Scope, spec.Cost, spec.Costs, spec.Priority
	if spec.Priority != 0 {
		scope += fmt.Sprintf(", priority %d", spec.Priority)
	}
	if r.MaxPriority = i.maxPriority(spec.Scope); r.MaxPriority != nil && spec.Priority > *r.MaxPriority {
		scope += fmt.Sprintf(" (max_priority %d)", *r.MaxPriority)
	}
	r.pausedBy, r.usedBy = i.pausedBy(spec.Scope), i.usedBy(spec.Scope)
	lines := append([][2]string{{"scope", scope}}, slices.Concat(r.pausedBy.lines(), r.usedBy.lines())...)
	got, err := i.limiter.Waitlist().InspectWaiter(ctx, throttle.Waiter{
		Scope: spec.Scope, ID: queue.Ticket(info.Queue, info.ID), Cost: spec.Cost, Costs: spec.Costs,
	})
	if isUnmatched(err) {
		r.Error = plainly(err)
		if r.unmatched, err = i.unmatched(ctx, spec.Scope); err != nil {
			return nil, err
		}
		if !waitingState(info.State) {
			return append(lines, [2]string{"rules", r.text}), nil
		}
		return append(lines, [2]string{"waits", r.advice(i.limiter.Policy().Unmatched())}), nil
	}
	if err != nil {
		return nil, explain(ctx, err, i.url)
	}
	switch {
	case got.Released && waitingState(info.State):
		r.Turn = turnReleased
		return append(lines, [2]string{"turn", "dispatched, on its way to a worker"}), nil
	case got.Parked:
		r.Turn = turnParked
		return append(lines, [2]string{"turn", "parked in its place until " + i.parked(spec, info.Queue)}), nil
	case got.Waits:
		at := expected(got.At, got.Expected, got.Binding)
		r.Turn, r.Place, r.Start = turnWaiting, got.Ahead+1, stamp(at)
		r.Rule, r.RuleScope = got.Binding.Rule.Name, got.Binding.Scope.String()
		return append(lines, [2]string{"place", fmt.Sprintf("%d in the queue of its scope", r.Place)},
			[2]string{"start", i.start(at, got.Binding) + paused(got.Paused)}), nil
	}
	return append(lines, [2]string{"turn", noTurn(info.State)}), nil
}

// maxPriority returns the highest priority that counts for tasks of a scope, nil for any.
func (i *inspection) maxPriority(name string) *int {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return nil // InspectWaiter reports it
	}
	limit, limited := i.limiter.Policy().MaxPriority(scope)
	if !limited {
		return nil
	}
	return &limit
}

// parked says until when a task's place is kept, and why.
func (i *inspection) parked(spec queue.Spec, name string) string {
	if err := i.tooDear(spec); err != nil {
		return "the limits change: it costs too much now. " + plainly(err)
	}
	return "its queue goes on: " + i.standstill(name)
}

// tooDear returns a *policy.CostError for a task that the limits can never admit.
func (i *inspection) tooDear(spec queue.Spec) (err error) {
	scope, err := policy.ParseScope(spec.Scope)
	switch policy := i.limiter.Policy(); {
	case err != nil:
		return nil //nolint:nilerr // it has been told by now
	case len(spec.Costs) > 0:
		err = policy.CheckCosts(scope, spec.Costs)
	default:
		err = policy.Check(scope, spec.Cost)
	}
	if !errors.As(err, new(*policy.CostError)) {
		return nil
	}
	return err
}

// standstill says why a queue's tasks are not released.
func (i *inspection) standstill(name string) string {
	info, err := i.inspector.GetQueueInfo(name)
	if err == nil && info.Paused {
		return "asynq has paused it"
	}
	return "no live worker serves it, or one has just begun to"
}

// costText writes a cost as enqueue's -cost takes it.
func costText(spec queue.Spec) string {
	if len(spec.Costs) > 0 {
		return spec.Costs.String()
	}
	return strconv.FormatInt(spec.Cost, 10)
}

// waitingState tells whether a worker may still take the task: by its own scheduled time, or now.
func waitingState(state asynq.TaskState) bool {
	return state == asynq.TaskStatePending || state == asynq.TaskStateScheduled || state == asynq.TaskStateRetry
}

// noTurn says why a task has no place in a line.
func noTurn(state asynq.TaskState) string {
	switch state {
	case asynq.TaskStateActive:
		return "with a worker, held until its start or running"
	case asynq.TaskStatePending:
		return "none yet; a worker takes the task next"
	default:
		return "does not wait for one"
	}
}
