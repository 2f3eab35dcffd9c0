// Package detach converts waiting tasks back into plain asynq tasks.
package detach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/queue"
)

// plain is a waiting task in the form that asynq has without Headway.
type plain struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Payload   []byte            `json:"payload"`
	Headers   map[string]string `json:"headers"`
	MaxRetry  int               `json:"max_retry"`
	Timeout   time.Duration     `json:"timeout_ns"`
	Deadline  time.Time         `json:"deadline"`
	Retention time.Duration     `json:"retention_ns"`
	At        time.Time         `json:"at"`
}

// Queue is worker.Detach.
func Queue(ctx context.Context, rdb redis.UniversalClient, name string) (changed int, err error) {
	l := &leaving{rdb: rdb, queue: name, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb)}
	if err := l.finish(ctx); err != nil {
		return 0, err
	}
	lists := []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		l.inspector.ListPendingTasks, l.inspector.ListScheduledTasks, l.inspector.ListRetryTasks,
	}
	for _, list := range lists {
		n, err := l.each(ctx, list)
		changed += n
		if err != nil {
			return changed, fmt.Errorf("headway: leave queue %s: %w", name, err)
		}
	}
	return changed, nil
}

type leaving struct {
	rdb       redis.UniversalClient
	queue     string
	client    *asynq.Client
	inspector *asynq.Inspector
}

const leavePage = 500

// each changes the tasks of one list. Changed tasks leave the pages that it reads, so it reads each page until nothing is left to change.
func (l *leaving) each(ctx context.Context, list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)) (changed int, err error) {
	for page := 1; ; {
		tasks, err := list(l.queue, asynq.PageSize(leavePage), asynq.Page(page))
		if errors.Is(err, asynq.ErrQueueNotFound) {
			return changed, nil
		}
		if err != nil {
			return changed, err
		}
		before := changed
		for _, info := range tasks {
			p, is := plainOf(info)
			if !is {
				continue
			}
			if err := l.change(ctx, info.ID, p); err != nil {
				return changed, fmt.Errorf("task %s: %w", info.ID, err)
			}
			changed++
		}
		if changed == before {
			if len(tasks) < leavePage {
				return changed, nil
			}
			page++
		}
	}
}

// plainOf returns the plain form of a task, false if it is plain already.
func plainOf(info *asynq.TaskInfo) (p plain, is bool) {
	if _, own := info.Headers[queue.HeaderMaxRetry]; !own {
		return plain{}, false
	}
	p = plain{ID: info.ID, Type: info.Type, Payload: info.Payload, Headers: maps.Clone(info.Headers), Retention: info.Retention, At: info.NextProcessAt}
	budget, _ := strconv.Atoi(info.Headers[queue.HeaderMaxRetry])
	p.MaxRetry = max(budget-info.Retried, 0)
	p.Timeout, _ = time.ParseDuration(info.Headers[queue.HeaderTimeout])
	p.Deadline, _ = time.Parse(time.RFC3339Nano, info.Headers[queue.HeaderDeadline])
	for _, name := range []string{queue.HeaderMaxRetry, queue.HeaderTimeout, queue.HeaderDeadline, queue.HeaderDue} {
		delete(p.Headers, name)
	}
	return p, true
}

func (l *leaving) journal() string { return "hw:leaving:{" + l.queue + "}" }

// change replaces a task by its plain form, with a record of it in between.
func (l *leaving) change(ctx context.Context, old string, p plain) error {
	record, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := l.rdb.HSet(ctx, l.journal(), p.ID, record).Err(); err != nil {
		return err
	}
	if err := l.inspector.DeleteTask(l.queue, old); err != nil {
		return errors.Join(err, l.rdb.HDel(ctx, l.journal(), p.ID).Err())
	}
	return l.restore(ctx, p)
}

// restore enqueues a plain task and deletes its record.
func (l *leaving) restore(ctx context.Context, p plain) error {
	opts := []asynq.Option{asynq.TaskID(p.ID), asynq.Queue(l.queue), asynq.MaxRetry(p.MaxRetry), asynq.Retention(p.Retention)}
	if p.Timeout > 0 {
		opts = append(opts, asynq.Timeout(max(p.Timeout, time.Second)))
	}
	if !p.Deadline.IsZero() {
		opts = append(opts, asynq.Deadline(p.Deadline))
	}
	if p.At.After(time.Now()) {
		opts = append(opts, asynq.ProcessAt(p.At))
	}
	_, err := l.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(p.Type, p.Payload, p.Headers), opts...)
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
		return err
	}
	return l.rdb.HDel(ctx, l.journal(), p.ID).Err()
}

// finish enqueues the tasks that an earlier call removed and did not put back.
func (l *leaving) finish(ctx context.Context) error {
	records, err := redisread.One(ctx, l.rdb, func(p redis.Pipeliner) *redis.MapStringStringCmd { return p.HGetAll(ctx, l.journal()) })
	if err != nil {
		return err
	}
	for id, record := range records.Val() {
		var p plain
		if err := json.Unmarshal([]byte(record), &p); err != nil {
			return fmt.Errorf("headway: the record of task %s in %s can't be read: %w", id, l.journal(), err)
		}
		if err := l.restore(ctx, p); err != nil {
			return fmt.Errorf("headway: put back task %s: %w", id, err)
		}
	}
	return nil
}
