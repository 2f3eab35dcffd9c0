package control

import (
	"cmp"
	"context"
	"regexp"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/waiting"
)

// newestFailed is how many archived tasks of an asynq queue Failed lists, the newest, and soonestFailed how
// many of those that are retried next it looks at.
const newestFailed, soonestFailed = 1000, 400

// FailedTask is a task that failed: it is archived, or it is tried again.
type FailedTask struct {
	Queue, ID, Type, Scope, Error string
	Kind                          string // see ErrorKind
	Archived                      bool
	At, Next                      time.Time // when it failed last, and when it is tried again
	Retried, MaxRetry             int
}

// FailedQueue is what failed, and what runs, of one asynq queue.
type FailedQueue struct {
	Archived, Retry int64 // tasks; those to be retried include some that wait for their limits
	Tasks           []FailedTask
	More            bool // not all of Archived and Retry were looked at
	Active          []ActiveTask
}

// Failed returns what failed and what runs of one asynq queue: of its archived tasks the newest 1,000, and of those to be retried
// the next 400. A queue that does not exist has none. Who may see which task is for the caller to ask, by May.
func (s *Service) Failed(ctx context.Context, name string) (q FailedQueue, err error) {
	info, err := s.failedCounts(ctx, name)
	if err != nil {
		return q, err
	}
	q.Archived, q.Retry = info[0], info[1]
	if q.Archived > 0 {
		last := int(q.Archived-1)/pageSize + 1 // the newest are at the end
		for page := last; page > 0 && page > last-newestFailed/pageSize; page-- {
			if q.Tasks, _, err = failedPage(s.inspector.ListArchivedTasks, name, page, q.Tasks); err != nil {
				return q, err
			}
		}
	}
	for page, full := 1, q.Retry > 0; full && page <= soonestFailed/pageSize; page++ {
		if q.Tasks, full, err = failedPage(s.inspector.ListRetryTasks, name, page, q.Tasks); err != nil {
			return q, err
		}
	}
	q.More = q.Archived > newestFailed || q.Retry > soonestFailed
	if info[2] > 0 {
		err = eachActive(s.inspector, name, func(t ActiveTask) { q.Active = append(q.Active, t) })
	}
	return q, err
}

// failedCounts counts the tasks of a queue that are archived, to be retried and active.
func (s *Service) failedCounts(ctx context.Context, name string) (n [3]int64, err error) {
	pipe := s.rdb.Pipeline()
	key := "asynq:{" + name + "}:"
	archived, retry, active := pipe.ZCard(ctx, key+"archived"), pipe.ZCard(ctx, key+"retry"), pipe.LLen(ctx, key+"active")
	_, err = pipe.Exec(ctx)
	return [3]int64{archived.Val(), retry.Val(), active.Val()}, err
}

// lister lists a page of tasks of a queue in one state.
type lister func(name string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)

// failedPage adds the failed tasks of a page to others, and reports whether the page was full.
func failedPage(list lister, name string, page int, others []FailedTask) (all []FailedTask, full bool, err error) {
	tasks, err := list(name, asynq.Page(page), asynq.PageSize(pageSize))
	if waiting.IsGone(err) {
		return others, false, nil
	}
	for _, info := range tasks {
		if hasFailed(info) {
			others = append(others, FailedTask{
				Queue: info.Queue, ID: info.ID, Type: info.Type, Scope: info.Headers[queue.HeaderScope], Error: info.LastErr, Kind: ErrorKind(info.LastErr),
				Archived: info.State == asynq.TaskStateArchived, At: info.LastFailedAt, Next: info.NextProcessAt, Retried: info.Retried, MaxRetry: info.MaxRetry,
			})
		}
	}
	return others, len(tasks) == pageSize, err
}

// hasFailed reports whether a task is archived, or is tried again after a failure. A task that waits for its
// limits is in asynq's retry state too.
func hasFailed(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateRetry && info.Retried > 0
}

var numbers = regexp.MustCompile("[0-9]+")

// ErrorKind returns what errors that differ only in numbers have in common: the first line of the text, at
// most 200 bytes of it, with "#" for each number.
func ErrorKind(text string) string {
	const most = 200
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	kind := numbers.ReplaceAllString(strings.ToValidUTF8(text[:min(len(text), 4*most)], "\ufffd"), "#")
	return strings.ToValidUTF8(kind[:min(len(kind), most)], "")
}

// findFailed finds failed tasks by their ids, or by scope, queue and error, without those that the actor may not change.
func (t *targets) findFailed(ctx context.Context) error {
	for _, id := range t.change.IDs {
		found, _, err := t.infos(ctx, id)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			t.gone = append(t.gone, target{cmp.Or(id.Queue, t.change.Queue), id.ID, ""})
		}
		for _, info := range found {
			scope := info.Headers[queue.HeaderScope]
			if t.s.May(t.actor, VerbSee, scope) != nil {
				t.gone = append(t.gone, target{info.Queue, info.ID, ""})
			} else if !t.refuses(scope, 1) {
				t.add(target{info.Queue, info.ID, scope})
			}
		}
	}
	if len(t.change.IDs) > 0 {
		return nil
	}
	queues, err := t.queues("")
	if err != nil {
		return err
	}
	for _, name := range queues {
		for _, list := range []lister{t.s.inspector.ListArchivedTasks, t.s.inspector.ListRetryTasks} {
			if err := t.findFailedIn(ctx, list, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// findFailedIn finds failed tasks of one queue in one of asynq's states, of 100,000 at most.
func (t *targets) findFailedIn(ctx context.Context, list lister, name string) error {
	for page, full := 1, true; full && !t.more && page <= mostSearched/pageSize; page++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		var tasks []FailedTask
		var err error
		if tasks, full, err = failedPage(list, name, page, nil); err != nil {
			return err
		}
		for _, f := range tasks {
			meant := (t.change.Scope == "" || covers(t.change.Scope, f.Scope)) && (t.change.Error == "" || t.change.Error == f.Kind)
			if meant && t.s.May(t.actor, VerbSee, f.Scope) == nil && !t.refuses(f.Scope, 1) {
				t.add(target{f.Queue, f.ID, f.Scope})
			}
		}
	}
	return nil
}

// changeFailed retries or deletes a failed task, and leaves it if it has not failed by now.
func (s *Service) changeFailed(ctx context.Context, tasks *waiting.Tasks, verb Verb, task target) (Outcome, error) {
	info, err := s.inspector.GetTaskInfo(task.queue, task.id)
	switch {
	case waiting.IsGone(err):
		return waiting.Gone, nil
	case err != nil:
		return "", err
	case !hasFailed(info):
		return outcomeOf(info.State), nil
	case verb == VerbRun:
		return tasks.RunNext(ctx, task.queue, task.id)
	case info.State == asynq.TaskStateRetry:
		return tasks.Cancel(ctx, task.queue, task.id)
	}
	if err := s.inspector.DeleteTask(task.queue, task.id); err != nil && !waiting.IsGone(err) {
		return "", err
	}
	return TaskChanged, nil
}

// outcomeOf is the outcome for a task that has not failed, or does not stand as failed any more.
func outcomeOf(state asynq.TaskState) Outcome {
	switch state { //nolint:exhaustive // all others are to run
	case asynq.TaskStateActive:
		return waiting.Active
	case asynq.TaskStateCompleted, asynq.TaskStateAggregating:
		return waiting.Ended
	}
	return waiting.Pending
}
