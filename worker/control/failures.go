package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/waiting"
)

const (
	// newestFailed is how many archived tasks of an asynq queue Failed lists, the newest, and soonestFailed how
	// many of those that are retried next it looks at.
	newestFailed, soonestFailed = 1000, 400
	// FailedCost is how many Redis commands Failed sends at most, with one page of active tasks.
	FailedCost = 4 + 3*(newestFailed+soonestFailed)/pageSize + 3 + ActiveInCost
)

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
	Days            []*asynq.DailyStats // today and yesterday, by UTC; nil for none
}

// Cost returns about how many Redis commands it took to read it.
func (q FailedQueue) Cost() int {
	pages := (min(q.Archived, newestFailed) + min(q.Retry, soonestFailed) + 2*pageSize - 2) / pageSize
	return 6 + 3*int(pages) + min(1, len(q.Active))*ActiveInCost
}

// Failed returns what failed and what runs of one asynq queue: of its archived tasks the newest 1,000, and
// of those to be retried the next 400. A queue that does not exist has none. Who may see which task is for
// the caller to ask, by May.
func (s *Service) Failed(ctx context.Context, name string) (q FailedQueue, err error) {
	info, err := s.failedCounts(ctx, name)
	if err != nil {
		return q, err
	}
	q.Archived, q.Retry = info[0], info[1]
	if q.Archived > 0 {
		last := int(q.Archived-1)/pageSize + 1 // the newest are at the end
		for page := last; page > 0 && page > last-newestFailed/pageSize; page-- {
			if _, err := s.failedPage(s.inspector.ListArchivedTasks, name, page, &q); err != nil {
				return q, err
			}
		}
	}
	for page, full := 1, q.Retry > 0; full && page <= soonestFailed/pageSize; page++ {
		if full, err = s.failedPage(s.inspector.ListRetryTasks, name, page, &q); err != nil {
			return q, err
		}
	}
	q.More = q.Archived > newestFailed || q.Retry > soonestFailed
	if info[2] > 0 {
		err = eachActive(s.inspector, name, func(t ActiveTask) { q.Active = append(q.Active, t) })
	}
	if q.Days, _ = s.inspector.History(name, 2); len(q.Days) < 2 { // its queue was removed just now
		q.Days = nil
	}
	return q, err
}

// failedCounts returns how many tasks of a queue are archived, to be retried and active.
func (s *Service) failedCounts(ctx context.Context, name string) (n [3]int64, err error) {
	pipe := s.rdb.Pipeline()
	key := "asynq:{" + name + "}:"
	archived, retry, active := pipe.ZCard(ctx, key+"archived"), pipe.ZCard(ctx, key+"retry"), pipe.LLen(ctx, key+"active")
	_, err = pipe.Exec(ctx)
	return [3]int64{archived.Val(), retry.Val(), active.Val()}, err
}

// lister lists a page of tasks of a queue in one state.
type lister func(name string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)

// failedPage adds the failed tasks of a page, and reports whether the page was full.
func (s *Service) failedPage(list lister, name string, page int, q *FailedQueue) (full bool, err error) {
	tasks, err := list(name, asynq.Page(page), asynq.PageSize(pageSize))
	if isGone(err) {
		return false, nil
	}
	for _, info := range tasks {
		if hasFailed(info) {
			q.Tasks = append(q.Tasks, failedTask(info))
		}
	}
	return len(tasks) == pageSize, err
}

// hasFailed reports whether a task is archived, or is tried again after a failure. A task that waits for its
// limits is in asynq's retry state too.
func hasFailed(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateRetry && info.Retried > 0
}

func failedTask(info *asynq.TaskInfo) FailedTask {
	return FailedTask{
		Queue: info.Queue, ID: info.ID, Type: info.Type, Scope: info.Headers[queue.HeaderScope], Error: info.LastErr, Kind: ErrorKind(info.LastErr),
		Archived: info.State == asynq.TaskStateArchived, At: info.LastFailedAt, Next: info.NextProcessAt, Retried: info.Retried, MaxRetry: info.MaxRetry,
	}
}

// ErrorKind returns what errors that differ only in numbers have in common: the first line of the text, at
// most 200 bytes of it, with "#" for each number.
func ErrorKind(text string) string {
	const most = 200
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	var b strings.Builder
	number := false
	for _, r := range text[:min(len(text), 4*most)] {
		digit := r >= '0' && r <= '9'
		switch {
		case digit && number:
		case digit:
			b.WriteByte('#')
		default:
			b.WriteRune(r)
		}
		number = digit
	}
	kind := b.String()
	return strings.ToValidUTF8(kind[:min(len(kind), most)], "")
}

// meantFailed finds the failed tasks that a change is about, each of which the actor may change: those with
// c.IDs, or those at c.Scope and below it, of c.Queue and with c.Error, as far as these are set. gone are
// tasks that do not exist, or that the actor may not see.
func (s *Service) meantFailed(ctx context.Context, who Actor, c TaskChange, most int, refused *Refused) (list, gone []meant, more bool, err error) {
	queues := []string{c.Queue}
	if c.Queue == "" {
		if queues, err = s.inspector.Queues(); err != nil {
			return nil, nil, false, err
		}
	}
	take := func(info *asynq.TaskInfo) {
		t := failedTask(info)
		switch {
		case s.May(who, VerbSee, t.Scope) != nil:
			gone = append(gone, meant{t.Queue, t.ID, ""})
		case s.refuses(who, c, t.Scope, 1, refused):
		case len(list) >= most:
			more = true
		default:
			list = append(list, meant{t.Queue, t.ID, t.Scope})
		}
	}
	for _, id := range c.IDs {
		found, err := s.find(ctx, id, queues)
		if err != nil {
			return nil, nil, false, err
		}
		for _, info := range found {
			take(info)
		}
		if len(found) == 0 {
			gone = append(gone, meant{c.Queue, id, ""})
		}
	}
	if len(c.IDs) > 0 {
		return list, gone, more, nil
	}
	for _, name := range queues {
		for _, tasks := range []lister{s.inspector.ListArchivedTasks, s.inspector.ListRetryTasks} {
			for page, full := 1, true; full && !more && page <= mostSearched/pageSize; page++ {
				var q FailedQueue
				if err = ctx.Err(); err == nil {
					full, err = s.failedPage(tasks, name, page, &q)
				}
				if err != nil {
					return nil, nil, false, err
				}
				for _, t := range q.Tasks {
					if (c.Scope == "" || covers(c.Scope, t.Scope)) && (c.Error == "" || c.Error == t.Kind) {
						take(&asynq.TaskInfo{Queue: t.Queue, ID: t.ID, Headers: map[string]string{queue.HeaderScope: t.Scope}})
					}
				}
			}
		}
	}
	return list, nil, more, nil // those that the actor may not see are not among what it asked for
}

// applyFailed retries or deletes failed tasks, and leaves those that have not failed by now.
func (s *Service) applyFailed(ctx context.Context, who Actor, c TaskChange, most int, done *TasksDone) error {
	list, gone, more, err := s.meantFailed(ctx, who, c, most, &done.Refused)
	if err != nil {
		return err
	}
	done.More = more
	for _, one := range gone {
		done.add(c, one, waiting.Gone)
	}
	tasks := waiting.New(s.rdb, s.limiter)
	for _, one := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		out, err := s.changeFailed(ctx, tasks, c.Verb, one)
		if err != nil {
			return one.fault(err)
		}
		done.add(c, one, out)
	}
	return nil
}

func (s *Service) changeFailed(ctx context.Context, tasks *waiting.Tasks, verb Verb, one meant) (Outcome, error) {
	info, err := s.inspector.GetTaskInfo(one.queue, one.id)
	switch {
	case isGone(err):
		return waiting.Gone, nil
	case err != nil:
		return "", err
	case !hasFailed(info):
		return outcomeOf(info.State), nil
	case verb == VerbRun:
		return tasks.RunNext(ctx, one.queue, one.id)
	case info.State == asynq.TaskStateRetry:
		return tasks.Cancel(ctx, one.queue, one.id)
	}
	if err := s.inspector.DeleteTask(one.queue, one.id); err != nil && !isGone(err) {
		return "", err
	}
	return TaskChanged, nil
}

// outcomeOf is the outcome for a task that has not failed, or does not stand as failed any more.
func outcomeOf(state asynq.TaskState) Outcome {
	switch {
	case state == asynq.TaskStateActive:
		return waiting.Active
	case slices.Contains([]asynq.TaskState{asynq.TaskStateCompleted, asynq.TaskStateAggregating}, state):
		return waiting.Ended
	}
	return waiting.Pending
}
