package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// TaskChange is a change of waiting tasks that an actor asks for. Count counts these tasks, and
// ApplyTasks changes them.
type TaskChange struct {
	// Verb is run, which starts tasks before all others as soon as the limits allow; move, which moves
	// them to another scope; cancel; clear, which cancels all tasks of a scope; or priority.
	Verb Verb
	// IDs are the tasks, in Queue, or in all queues if that is empty. Without IDs the change is about all
	// tasks that wait in Scope and below it, with "*" for every name, and only those of Queue and of Type
	// if these are set.
	IDs                []string
	Scope, Queue, Type string
	// Failed makes run and cancel about tasks that failed, instead of those that wait: run tries them again,
	// and cancel deletes them. Without IDs they are those of Scope, of Queue, and with an error of the kind
	// Error, as far as these are set; see ErrorKind. Tasks that the actor may not change are left.
	Failed bool
	Error  string
	// To is the scope that move moves tasks to.
	To string
	// Priority is the value that priority sets.
	Priority int
	// Before is the end of clear: it leaves tasks whose wait began later, by their headers, which have
	// the time of the host that enqueued them. Defaults to the server's time when ApplyTasks begins.
	Before time.Time
	// Reason is the reason for the audit line.
	Reason string
	// Most is how many tasks to change at most. Defaults to MostTasks, the most.
	Most int
	// Progress is called after each task, with how many were changed and how many were left. It must not
	// block. Nil for none.
	Progress func(changed, left int)
}

// Refused is the number of tasks by their scope that a change leaves, because the actor has no right to
// change tasks there: payments/* covers scopes of other owners too. It has no scope that the actor may
// not see.
type Refused map[string]int64

// TaskCount is the number of tasks that a TaskChange is about.
type TaskCount struct {
	Tasks int64
	// More says that there are more, which were not counted.
	More bool
	// At is the server's time before they were counted, for TaskChange.Before. Only of clear.
	At time.Time
	// Refused are not among Tasks.
	Refused Refused
}

// Outcome is the outcome of a change for one task.
type Outcome = waiting.Outcome

// TaskChanged is the Outcome of a task that was changed.
const TaskChanged = waiting.Changed

// TasksDone is the result of a TaskChange.
type TasksDone struct {
	// Changed is the number of tasks that were changed.
	Changed int
	// Left is the number of tasks that were left as they were, by outcome.
	Left map[Outcome]int
	// Tasks are all of them, in order.
	Tasks []TaskDone
	// Refused are not among Tasks, nor among Left.
	Refused Refused
	// More says that there are more, for the next call.
	More bool
}

// TaskDone is the result for one task. docs/json.md has its fields.
type TaskDone struct {
	ID      string  `json:"id"`
	Queue   string  `json:"queue"`
	Scope   string  `json:"scope,omitempty"`
	Outcome Outcome `json:"outcome"`
}

// TaskChangeError is the error for a TaskChange that lacks what to do, or which tasks.
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

// refuses reports whether an actor has no right to change tasks of a scope, and counts n of them.
func (s *Service) refuses(who Actor, c TaskChange, scope string, n int64, refused *Refused) bool {
	if s.mayTasks(who, c, scope) == nil {
		return false
	}
	if s.May(who, VerbSee, scope) != nil {
		return true
	}
	if *refused == nil {
		*refused = Refused{}
	}
	(*refused)[scope] += n
	return true
}

// mayTasks checks an actor's rights at the scope of each task, and at the scope that tasks enter.
func (s *Service) mayTasks(who Actor, c TaskChange, scopes ...string) error {
	if c.Verb == VerbMove {
		scopes = append(scopes, c.To)
	}
	for _, scope := range scopes {
		if err := s.May(who, c.Verb, scope); err != nil {
			return err
		}
	}
	return nil
}

// meant is a task that a TaskChange is about.
type meant struct{ queue, id, scope string }

// Count returns the number of tasks that a TaskChange is about, and changes nothing. By queue and type
// it counts 100,000 at most. The error is a *TaskChangeError, a *ForbiddenError, a *NoTaskError, one of
// Policy.Check for the scope to move to, or Redis's.
func (s *Service) Count(ctx context.Context, who Actor, c TaskChange) (n TaskCount, err error) {
	if err := s.checkTasks(who, c); err != nil {
		return n, err
	}
	if c.Verb == VerbClear {
		if n.At, err = s.rdb.Time(ctx).Result(); err != nil {
			return n, err
		}
	}
	if len(c.IDs) == 0 && c.Queue == "" && c.Type == "" && !c.Failed {
		return n, s.countUnder(ctx, who, c, &n)
	}
	if c.Failed {
		list, _, more, err := s.meantFailed(ctx, who, c, mostSearched, &n.Refused)
		n.Tasks, n.More = int64(len(list)), more
		return n, err
	}
	list, more, err := s.meant(ctx, who, c, mostSearched, &n.Refused)
	n.Tasks, n.More = int64(len(list)), more
	return n, err
}

func (s *Service) checkTasks(who Actor, c TaskChange) error {
	if err := c.check(); err != nil {
		return err
	}
	scopes := []string{c.Scope}
	if len(c.IDs) > 0 || c.Failed {
		scopes = nil // each task's scope is checked when the task is found
	}
	if err := s.mayTasks(who, c, scopes...); err != nil {
		return err
	}
	return c.checkTo(s.limiter.Policy()) // what the limits name is for those alone that have the right
}

// ApplyTasks changes waiting tasks, each by itself, and records that in Redis and in the log. It leaves
// tasks that a worker has, or that were granted their start. An error ends it; the result then has what
// was done before. Its errors are those of Count. Costs some twenty round trips a task, and six for one
// that is cancelled.
func (s *Service) ApplyTasks(ctx context.Context, who Actor, c TaskChange) (done TasksDone, err error) {
	if err := s.checkTasks(who, c); err != nil {
		return done, err
	}
	if err := policystore.CheckAction(who.Name, who.Via, c.Reason); err != nil {
		return done, err
	}
	most := c.Most
	if most == 0 {
		most = MostTasks
	}
	done.Left = map[Outcome]int{}
	if c.Verb == VerbClear {
		err = s.clear(ctx, who, c, most, &done)
		return done, errors.Join(err, s.auditTasks(ctx, who, c, done))
	}
	if c.Failed {
		err = s.applyFailed(ctx, who, c, most, &done)
		return done, errors.Join(err, s.auditTasks(ctx, who, c, done))
	}
	list, more, err := s.meant(ctx, who, c, most, &done.Refused)
	if err != nil {
		return done, err
	}
	done.More = more
	tasks := waiting.New(s.rdb, s.limiter)
	for _, one := range list {
		if err = done.change(ctx, tasks, c, one); err != nil {
			break
		}
	}
	return done, errors.Join(err, s.auditTasks(ctx, who, c, done))
}

// change changes one task, and adds the outcome.
func (d *TasksDone) change(ctx context.Context, tasks *waiting.Tasks, c TaskChange, one meant) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	out, err := changeTask(ctx, tasks, c, one)
	if err != nil {
		return one.fault(err)
	}
	d.add(c, one, out)
	return nil
}

func (m meant) fault(err error) error {
	return fmt.Errorf("task %s of queue %s: %w", quote(m.id), quote(m.queue), err)
}

// add adds the outcome for one task.
func (d *TasksDone) add(c TaskChange, one meant, out Outcome) {
	d.Tasks = append(d.Tasks, TaskDone{ID: one.id, Queue: one.queue, Scope: one.scope, Outcome: out})
	if out == TaskChanged {
		d.Changed++
	} else {
		d.Left[out]++
	}
	if c.Progress != nil {
		c.Progress(d.Changed, len(d.Tasks)-d.Changed)
	}
}

func changeTask(ctx context.Context, tasks *waiting.Tasks, c TaskChange, one meant) (Outcome, error) {
	switch c.Verb {
	case VerbRun:
		return tasks.RunNext(ctx, one.queue, one.id)
	case VerbMove:
		return tasks.SetScope(ctx, one.queue, one.id, c.To)
	case VerbPriority:
		return tasks.SetPriority(ctx, one.queue, one.id, c.Priority)
	}
	return tasks.Cancel(ctx, one.queue, one.id)
}

// meant finds the tasks that a change is about, at most as many as asked for, and returns whether there
// are more. It counts those of a scope that the actor may not change.
func (s *Service) meant(ctx context.Context, who Actor, c TaskChange, most int, refused *Refused) (list []meant, more bool, err error) {
	if len(c.IDs) > 0 {
		list, err = s.meantByID(ctx, who, c)
		return list[:min(most, len(list))], len(list) > most, err
	}
	providers, err := s.providersOf(ctx, c.Scope)
	if err != nil {
		return nil, false, err
	}
	for _, provider := range providers {
		some, someMore, err := s.meantOf(ctx, who, c, provider, most-len(list), refused)
		if err != nil {
			return nil, false, err
		}
		list, more = append(list, some...), more || someMore
	}
	return list, more, nil
}

// providersOf returns the providers with waiting tasks that a scope's first name means.
func (s *Service) providersOf(ctx context.Context, scope string) ([]string, error) {
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(scope, "/")
	return slices.DeleteFunc(slices.Sorted(maps.Keys(providers)), func(provider string) bool { return first != "*" && first != provider }), nil
}

// meantByID finds tasks by their ids. The error says that a task does not exist or may not be seen, or
// that it may not be changed.
func (s *Service) meantByID(ctx context.Context, who Actor, c TaskChange) (list []meant, err error) {
	queues := []string{c.Queue}
	if c.Queue == "" {
		if queues, err = s.inspector.Queues(); err != nil {
			return nil, err
		}
	}
	for _, id := range c.IDs {
		found, err := s.find(ctx, id, queues)
		if err != nil {
			return nil, err
		}
		here := list
		for _, info := range found {
			scope, err := s.scopeOf(ctx, info)
			if err != nil {
				return nil, err
			}
			if s.May(who, VerbSee, scope) != nil {
				continue
			}
			if err := s.mayTasks(who, c, scope); err != nil {
				return nil, err
			}
			list = append(list, meant{info.Queue, info.ID, scope})
		}
		if len(list) == len(here) {
			return nil, &NoTaskError{ID: id, Queues: queues}
		}
	}
	return list, nil
}

// isGone reports whether an error of asynq says that there is no such task.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// scopeOf returns the scope that a task spends from, "" if that is not known.
func (s *Service) scopeOf(ctx context.Context, info *asynq.TaskInfo) (string, error) {
	if scope := info.Headers[queue.HeaderScope]; scope != "" {
		return scope, nil
	}
	scope, _, err := s.found(ctx, info)
	return scope, err
}

// meantOf finds the tasks of a provider by scope, queue and type among those that wait.
func (s *Service) meantOf(ctx context.Context, who Actor, c TaskChange, provider string, most int, refused *Refused) (list []meant, more bool, err error) {
	const page = 1000
	seen, searched := map[waitlist.Ref]bool{}, 0
	for line := inspect.Of(s.limiter.Waitlist()).Tasks(provider); ; {
		some, err := line.Next(ctx, page)
		if err != nil {
			return nil, false, err
		}
		before := len(seen)
		for _, p := range some {
			again := seen[p]
			seen[p] = true
			is, err := s.isMeant(p, c)
			if err != nil {
				return nil, false, err
			}
			if again || !is || s.refuses(who, c, p.Scope, 1, refused) {
				continue
			}
			if len(list) >= most {
				return list, true, nil
			}
			list = append(list, meant{p.Queue, p.ID, p.Scope})
		}
		if searched += len(some); len(some) < page || len(seen) == before { // the list starts over after its end
			return list, false, nil
		}
		if searched >= mostSearched {
			return list, true, nil
		}
	}
}

// isMeant reports whether a change is about a task, by its scope, queue and type.
func (s *Service) isMeant(p waitlist.Ref, c TaskChange) (bool, error) {
	if !covers(c.Scope, p.Scope) || c.Queue != "" && c.Queue != p.Queue {
		return false, nil
	}
	if c.Type == "" {
		return true, nil
	}
	info, err := s.inspector.GetTaskInfo(p.Queue, p.ID)
	if isGone(err) {
		return false, nil
	}
	return err == nil && info.Type == c.Type, err
}

// clearPage is how many places of a queue one step of clear reads at once.
const clearPage = 1000

// clearing is a clear under way.
type clearing struct {
	*Service
	who      Actor
	tasks    *waiting.Tasks
	change   TaskChange
	most     int
	done     *TasksDone
	seen     map[waitlist.Ref]bool // those that were looked at
	searched int                   // those of them that were left
}

// clear cancels the tasks of a scope and below it whose wait began before c.Before. It passes over the
// queues once, cancels most tasks, and sets done.More if it did not reach the end.
func (s *Service) clear(ctx context.Context, who Actor, c TaskChange, most int, done *TasksDone) error {
	if c.Before.IsZero() {
		now, err := s.rdb.Time(ctx).Result()
		if err != nil {
			return err
		}
		c.Before = now
	}
	providers, err := s.providersOf(ctx, c.Scope)
	if err != nil {
		return err
	}
	d := &clearing{Service: s, who: who, tasks: waiting.New(s.rdb, s.limiter), change: c, most: most, done: done, seen: map[waitlist.Ref]bool{}}
	for _, provider := range providers {
		if err := d.queued(ctx, provider); err != nil {
			return err
		}
	}
	return nil
}

func (d *clearing) queued(ctx context.Context, provider string) error {
	line := inspect.Of(d.limiter.Waitlist()).Tasks(provider)
	for !d.done.More {
		some, err := line.Next(ctx, clearPage)
		if err != nil {
			return err
		}
		before := len(d.seen)
		for _, p := range some {
			if err := d.cancelOne(ctx, p); err != nil || d.done.More {
				return err
			}
		}
		if len(some) < clearPage || len(d.seen) == before { // the list starts over after its end
			return nil
		}
	}
	return nil
}

func (d *clearing) cancelOne(ctx context.Context, p waitlist.Ref) error {
	if d.seen[p] || !covers(d.change.Scope, p.Scope) {
		return nil
	}
	if d.done.Changed >= d.most || d.searched >= mostSearched {
		d.done.More = true
		return nil
	}
	d.seen[p] = true
	if d.refuses(d.who, d.change, p.Scope, 1, &d.done.Refused) {
		d.searched++
		return nil
	}
	later, err := d.later(p.Queue, p.ID)
	changed := d.done.Changed
	if err == nil && !later {
		err = d.done.change(ctx, d.tasks, d.change, meant{p.Queue, p.ID, p.Scope})
	}
	if d.done.Changed == changed {
		d.searched++
	}
	return err
}

// later reports whether the wait of a task began after the clear.
func (d *clearing) later(name, id string) (bool, error) {
	info, err := d.inspector.GetTaskInfo(name, id)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return dueOf(info).After(d.change.Before), nil
}

// dueOf returns when the wait of a task began by its headers, zero if they do not say.
func dueOf(info *asynq.TaskInfo) time.Time {
	at, err := time.Parse(time.RFC3339Nano, info.Headers[queue.HeaderDue])
	if err != nil {
		return time.Time{}
	}
	return at
}

// countUnder counts the tasks that wait at a scope and below it. It counts 10,000 scopes of each provider at most.
func (s *Service) countUnder(ctx context.Context, who Actor, c TaskChange, n *TaskCount) error {
	queues, more, err := s.queuesUnder(ctx, []string{c.Scope})
	n.More = more
	for _, q := range queues {
		if !s.refuses(who, c, q.Scope, q.Own, &n.Refused) {
			n.Tasks += q.Own
		}
	}
	return err
}
