package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/waiting"
)

// taskVerbs are the verbs of TaskChange.
var taskVerbs = []Verb{VerbRun, VerbMove, VerbCancel, VerbClear, VerbPriority}

// MostTasks is the most tasks that one TaskChange changes.
const MostTasks = 100_000

// TaskChange is a change of waiting tasks that an actor asks for. Count counts these tasks, and ApplyTasks changes them.
type TaskChange struct {
	// Verb is run, which starts tasks before all others as soon as the limits allow; move, which moves
	// them to another scope; cancel; clear, which cancels all tasks of a scope; or priority.
	Verb Verb
	// IDs are the tasks. Without IDs the change is about all tasks that wait in Scope and below it, with "*"
	// for every name, and only those of Queue and of Type if these are set.
	IDs                []TaskID
	Scope, Queue, Type string
	// Failed makes run and cancel about tasks that failed, instead of those that wait: run tries them again,
	// and cancel deletes them. Without IDs they are those of Scope, of Queue, and with an error of the kind
	// Error, as far as these are set; see ErrorKind. Tasks that the actor may not change are left.
	Failed   bool
	Error    string
	To       string // the scope to which move moves tasks
	Priority int    // that priority sets
	// Before bounds clear: it leaves tasks whose wait began later, by the clock of the host that enqueued
	// them. Defaults to the server's time when ApplyTasks begins.
	Before time.Time
	Reason string // for the audit line
	Most   int    // how many tasks to change at most; defaults to MostTasks, the most
	// Progress is called after each task, with how many were changed and how many were left. It must not block. Defaults to none.
	Progress func(changed, left int)
}

// TaskID names a task. An empty Queue stands for that of the TaskChange, or for all queues.
type TaskID struct{ Queue, ID string }

// Refused counts, by scope, the tasks that a change leaves because the actor has no right to them: payments/* covers scopes of other
// owners too. It has no scope that the actor may not see.
type Refused map[string]int64

// TaskCount is the number of tasks that a TaskChange is about.
type TaskCount struct {
	Tasks   int64
	More    bool      // there are more, which were not counted
	At      time.Time // the server's time before they were counted, for TaskChange.Before; only of clear
	Refused Refused   // not among Tasks
}

// Outcome is the outcome of a change for one task.
type Outcome = waiting.Outcome

// TaskChanged is the Outcome of a task that was changed.
const TaskChanged = waiting.Changed

// TasksDone is the result of a TaskChange.
type TasksDone struct {
	Changed int             // how many tasks were changed
	Left    map[Outcome]int // how many were left as they were
	Tasks   []TaskDone      // all of them, in order
	Refused Refused         // not among Tasks, nor among Left
	More    bool            // there are more, for the next call
}

// TaskDone is the result for one task. docs/json.md has its fields.
type TaskDone struct {
	ID      string  `json:"id"`
	Queue   string  `json:"queue"`
	Scope   string  `json:"scope,omitempty"`
	Outcome Outcome `json:"outcome"`
}

// TaskChangeError is the error for a TaskChange that does not say what to do, or to which tasks.
type TaskChangeError struct{ Why string }

func (e *TaskChangeError) Error() string { return e.Why }

// check refuses a change that no task can undergo.
func (c *TaskChange) check() error {
	switch {
	case !slices.Contains(taskVerbs, c.Verb):
		return &TaskChangeError{fmt.Sprintf("tasks cannot be changed by %q", c.Verb)}
	case c.Verb == VerbClear && (c.Scope == "" || len(c.IDs) > 0 || c.Queue != "" || c.Type != ""):
		return &TaskChangeError{"clear takes a scope alone, and no ids, queue or type"}
	case c.Failed && (c.Verb != VerbRun && c.Verb != VerbCancel || c.Type != ""):
		return &TaskChangeError{"tasks that failed can be tried again or deleted, by scope, queue and error"}
	case !c.Failed && c.Error != "":
		return &TaskChangeError{"only tasks that failed have an error"}
	case len(c.IDs) == 0 && c.Scope == "" && !c.Failed:
		return &TaskChangeError{"no task is named, and no scope"}
	case len(c.IDs) > 0 && c.Scope != "":
		return &TaskChangeError{"tasks are named by their ids or by a scope, not by both"}
	case c.Most < 0 || c.Most > MostTasks:
		return &TaskChangeError{fmt.Sprintf("%d is not from 1 to %d tasks", c.Most, MostTasks)}
	case c.Verb == VerbPriority && (c.Priority < -policy.MaxPriority || c.Priority > policy.MaxPriority):
		return &TaskChangeError{fmt.Sprintf("priority %d is not from %d to %d", c.Priority, -policy.MaxPriority, policy.MaxPriority)}
	case c.Verb == VerbMove && c.To == "":
		return &TaskChangeError{"no scope to move to"}
	}
	return nil
}

// checkTo refuses a move to a scope that is none, or that meets no rule.
func (c *TaskChange) checkTo(p *policy.Policy) error {
	if c.Verb != VerbMove {
		return nil
	}
	scope, err := policy.ParseScope(c.To)
	if err == nil {
		err = p.Check(scope, 1)
	}
	if errors.As(err, new(*policy.CostError)) {
		return nil // a task may cost less, by unit
	}
	return err
}

// mayTasks checks an actor's rights at the scope of each task, and at the scope that tasks enter.
func (s *Service) mayTasks(actor Actor, c TaskChange, scopes ...string) error {
	if c.Verb == VerbMove {
		scopes = append(scopes, c.To)
	}
	for _, scope := range scopes {
		if err := s.May(actor, c.Verb, scope); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) checkTasks(actor Actor, c TaskChange) error {
	if err := c.check(); err != nil {
		return err
	}
	scopes := []string{c.Scope}
	if len(c.IDs) > 0 || c.Failed {
		scopes = nil // each task's scope is checked when the task is found
	}
	if err := s.mayTasks(actor, c, scopes...); err != nil {
		return err
	}
	return c.checkTo(s.limiter.Policy()) // what the limits name is for those alone that have the right
}

// Count returns the number of tasks that a TaskChange is about. By queue and type it counts 100,000 at most. The error is a
// *TaskChangeError, a *ForbiddenError, a *NoTaskError, one of Policy.Check for the scope to move to, or Redis's.
func (s *Service) Count(ctx context.Context, actor Actor, c TaskChange) (n TaskCount, err error) {
	if err := s.checkTasks(actor, c); err != nil {
		return n, err
	}
	if c.Verb == VerbClear {
		if n.At, err = s.rdb.Time(ctx).Result(); err != nil {
			return n, err
		}
	}
	t := &targets{s: s, actor: actor, change: c, most: MostTasks}
	if len(c.IDs) > 0 || c.Queue != "" || c.Type != "" || c.Failed {
		err = t.find(ctx)
		return TaskCount{Tasks: int64(len(t.list)), More: t.more, Refused: t.refused}, err
	}
	queues, all, err := s.queuesUnder(ctx, []string{c.Scope})
	for _, q := range queues {
		if !t.refuses(q.Scope, q.Own) {
			n.Tasks += q.Own
		}
	}
	n.More, n.Refused = all.More, t.refused
	return n, err
}

// ApplyTasks changes waiting tasks one by one, and records that in Redis and in the log. It leaves tasks that a worker has, or that
// were granted their start. An error, one of those of Count, ends it; the result then has what was done before. Costs some twenty
// round trips for each task, and six for each that is cancelled.
func (s *Service) ApplyTasks(ctx context.Context, actor Actor, c TaskChange) (done TasksDone, err error) {
	if err := s.checkTasks(actor, c); err != nil {
		return done, err
	}
	if err := (policystore.Edit{By: actor.Name, Via: actor.Via, Reason: c.Reason}).Check(); err != nil {
		return done, err
	}
	if c.Verb == VerbClear && c.Before.IsZero() {
		if c.Before, err = s.rdb.Time(ctx).Result(); err != nil {
			return done, err
		}
	}
	t := &targets{s: s, actor: actor, change: c, most: cmp.Or(c.Most, MostTasks)}
	if err := t.find(ctx); err != nil {
		return done, err
	}
	done = TasksDone{Left: map[Outcome]int{}, Refused: t.refused, More: t.more}
	for _, task := range t.gone {
		done.add(c, task, waiting.Gone)
	}
	tasks := waiting.New(s.rdb, s.limiter)
	for _, task := range t.list {
		var out Outcome
		if err = ctx.Err(); err == nil {
			out, err = s.changeTask(ctx, tasks, c, task)
		}
		if err != nil {
			err = fmt.Errorf("task %s of queue %s: %w", quote(task.id), quote(task.queue), err)
			break
		}
		done.add(c, task, out)
	}
	return done, errors.Join(err, s.auditTasks(ctx, actor, c, done))
}

func (d *TasksDone) add(c TaskChange, task target, out Outcome) {
	d.Tasks = append(d.Tasks, TaskDone{ID: task.id, Queue: task.queue, Scope: task.scope, Outcome: out})
	if out == TaskChanged {
		d.Changed++
	} else {
		d.Left[out]++
	}
	if c.Progress != nil {
		c.Progress(d.Changed, len(d.Tasks)-d.Changed)
	}
}

func (s *Service) changeTask(ctx context.Context, tasks *waiting.Tasks, c TaskChange, task target) (Outcome, error) {
	switch {
	case c.Failed:
		return s.changeFailed(ctx, tasks, c.Verb, task)
	case c.Verb == VerbRun:
		return tasks.RunNext(ctx, task.queue, task.id)
	case c.Verb == VerbMove:
		return tasks.SetScope(ctx, task.queue, task.id, c.To)
	case c.Verb == VerbPriority:
		return tasks.SetPriority(ctx, task.queue, task.id, c.Priority)
	}
	return tasks.Cancel(ctx, task.queue, task.id)
}

type target struct{ queue, id, scope string }

// targets finds the tasks that a TaskChange of an actor is about, and that the actor may change.
type targets struct {
	s      *Service
	actor  Actor
	change TaskChange
	most   int // tasks that list has at most

	list    []target
	gone    []target // failed tasks that do not exist, or that the actor may not see
	refused Refused
	more    bool // there are more tasks
}

func (t *targets) find(ctx context.Context) error {
	switch {
	case t.change.Failed:
		return t.findFailed(ctx)
	case len(t.change.IDs) > 0:
		return t.findIDs(ctx)
	}
	providers, err := t.s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return err
	}
	first := providerOf(t.change.Scope)
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		if first == "*" || first == provider {
			if err := t.findWaiting(ctx, provider); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuses reports whether the actor has no right to change tasks of a scope, and counts n of them.
func (t *targets) refuses(scope string, n int64) bool {
	if t.s.mayTasks(t.actor, t.change, scope) == nil {
		return false
	}
	if t.s.May(t.actor, VerbSee, scope) == nil {
		if t.refused == nil {
			t.refused = Refused{}
		}
		t.refused[scope] += n
	}
	return true
}

func (t *targets) add(task target) {
	if t.more = t.more || len(t.list) >= t.most; !t.more {
		t.list = append(t.list, task)
	}
}

// infos returns the tasks of an id, one for each queue that has one, and the queues that were searched.
func (t *targets) infos(ctx context.Context, id TaskID) (list []*asynq.TaskInfo, queues []string, err error) {
	if queues, err = t.queues(id.Queue); err == nil {
		list, err = t.s.find(ctx, id.ID, queues)
	}
	return list, queues, err
}

// queues returns a queue, or else that of the change, or else all queues of asynq.
func (t *targets) queues(name string) ([]string, error) {
	if name = cmp.Or(name, t.change.Queue); name != "" {
		return []string{name}, nil
	}
	return t.s.inspector.Queues()
}

// findIDs finds tasks by their ids. Its error is a *NoTaskError for one that the actor may not see, or a *ForbiddenError.
func (t *targets) findIDs(ctx context.Context) error {
	for _, id := range t.change.IDs {
		found, queues, err := t.infos(ctx, id)
		if err != nil {
			return err
		}
		seen := false
		for _, info := range found {
			scope := info.Headers[queue.HeaderScope]
			if scope == "" {
				if scope, _, err = t.s.scopeFromWorker(ctx, info); err != nil {
					return err
				}
			}
			if t.s.May(t.actor, VerbSee, scope) != nil {
				continue
			}
			if err := t.s.mayTasks(t.actor, t.change, scope); err != nil {
				return err
			}
			seen = true
			t.add(target{info.Queue, info.ID, scope})
		}
		if !seen {
			return &NoTaskError{ID: id.ID, Queues: queues}
		}
	}
	return nil
}

// findWaiting finds the waiting tasks of a provider by scope, queue and type. It looks at 100,000 others at most.
func (t *targets) findWaiting(ctx context.Context, provider string) error {
	seen, others := map[waitlist.Ref]bool{}, 0
	for tasks := inspect.Of(t.s.limiter.Waitlist()).Tasks(provider); ; {
		part, err := tasks.Next(ctx, 1000)
		if err != nil {
			return err
		}
		for _, ref := range part {
			if !covers(t.change.Scope, ref.Scope) || seen[ref] {
				continue
			}
			seen[ref] = true
			is, err := t.matches(ref)
			if err != nil {
				return err
			}
			if !is || t.refuses(ref.Scope, 1) {
				if others++; others >= mostSearched {
					t.more = true
				}
			} else {
				t.add(target{ref.Queue, ref.ID, ref.Scope})
			}
			if t.more {
				return nil
			}
		}
		if tasks.AtStart() {
			return nil
		}
	}
}

// matches reports whether the change is about a task of its scope, by queue, type and the begin of its wait.
func (t *targets) matches(ref waitlist.Ref) (bool, error) {
	c := t.change
	if c.Queue != "" && c.Queue != ref.Queue {
		return false, nil
	}
	if c.Type == "" && c.Before.IsZero() {
		return true, nil
	}
	info, err := t.s.inspector.GetTaskInfo(ref.Queue, ref.ID)
	if waiting.IsGone(err) {
		return false, nil
	}
	return err == nil && (c.Type == "" || info.Type == c.Type) && (c.Before.IsZero() || !dueOf(info).After(c.Before)), err
}

// dueOf returns when the wait of a task began by its headers, zero if they do not say.
func dueOf(info *asynq.TaskInfo) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, info.Headers[queue.HeaderDue])
	return at
}
