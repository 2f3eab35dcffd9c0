// Package asynqread reads what asynq keeps of tasks, queues and servers, for the page and for metrics: many at a time, and no
// more than asked for. It writes nothing.
package asynqread

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// QueueTasks is how many tasks of a queue can run now, and run.
type QueueTasks struct {
	Name            string
	Pending, Active int64
	Paused          bool
}

// CountTasks returns the tasks of asynq's queues in the order of their names, of the first most queues. It costs a round trip, and
// another of three commands a queue.
func CountTasks(ctx context.Context, rdb redis.UniversalClient, most int) (list []QueueTasks, more bool, err error) {
	names, err := rdb.SMembers(ctx, "asynq:queues").Result()
	if err != nil || len(names) == 0 {
		return nil, false, err
	}
	slices.Sort(names)
	if more = len(names) > most; more {
		names = names[:most]
	}
	counts, err := readEach(ctx, rdb, names, func(pipe redis.Pipeliner, name string) [3]*redis.IntCmd {
		key := asynqx.QueuePrefix(name)
		return [3]*redis.IntCmd{pipe.LLen(ctx, key+"pending"), pipe.LLen(ctx, key+"active"), pipe.Exists(ctx, key+"paused")}
	})
	if err != nil {
		return nil, false, err
	}
	for i, n := range counts {
		list = append(list, QueueTasks{names[i], n[0].Val(), n[1].Val(), n[2].Val() > 0})
	}
	return list, more, nil
}

// readEach sends the commands of read for each item in one round trip, and returns them in the order of the items.
func readEach[T, C any](ctx context.Context, rdb redis.UniversalClient, items []T, read func(redis.Pipeliner, T) C) ([]C, error) {
	if len(items) == 0 {
		return nil, nil
	}
	cmds := make([]C, len(items))
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, item := range items {
			cmds[i] = read(pipe, item)
		}
		return nil
	})
	return cmds, err
}

// Backlog counts the tasks of queues in pending, scheduled and retry. It costs one round trip of three commands a queue.
func Backlog(ctx context.Context, rdb redis.UniversalClient, queues []string) (n int64, err error) {
	counts, err := readEach(ctx, rdb, queues, func(pipe redis.Pipeliner, name string) [3]*redis.IntCmd {
		key := asynqx.QueuePrefix(name)
		return [3]*redis.IntCmd{pipe.LLen(ctx, key+"pending"), pipe.ZCard(ctx, key+"scheduled"), pipe.ZCard(ctx, key+"retry")}
	})
	for _, part := range counts {
		n += part[0].Val() + part[1].Val() + part[2].Val()
	}
	return n, err
}

// TaskRef is a task of a queue.
type TaskRef struct{ Queue, ID string }

// Headers returns a header of each task, "" for a task that has gone or does not have it. It costs a round trip of a command a task.
func Headers(ctx context.Context, rdb redis.UniversalClient, tasks []TaskRef, name string) ([]string, error) {
	heads, err := TaskHeads(ctx, rdb, tasks)
	if err != nil {
		return nil, err
	}
	values := make([]string, len(tasks))
	for i, task := range tasks {
		values[i] = heads[task].Headers[name]
	}
	return values, nil
}

// TaskHead is the type and the headers of a task.
type TaskHead struct {
	Type    string
	Headers map[string]string
}

// TaskHeads returns the heads of tasks, without those that have gone. It costs a round trip of a command a task.
func TaskHeads(ctx context.Context, rdb redis.UniversalClient, tasks []TaskRef) (map[TaskRef]TaskHead, error) {
	read, err := readEach(ctx, rdb, tasks, func(pipe redis.Pipeliner, t TaskRef) *redis.SliceCmd {
		return pipe.HMGet(ctx, asynqx.QueuePrefix(t.Queue)+"t:"+t.ID, "msg") // no error for a task that has gone
	})
	if err != nil {
		return nil, err
	}
	heads := map[TaskRef]TaskHead{}
	for i, cmd := range read {
		message, _ := cmd.Val()[0].(string)
		if head, ok := readTaskHead([]byte(message)); ok && message != "" {
			heads[tasks[i]] = head
		}
	}
	return heads, nil
}

// readTaskHead reads the head of a message (asynq v0.26, internal/proto/asynq.proto). It returns false if the message is not asynq's.
func readTaskHead(message []byte) (head TaskHead, ok bool) {
	head.Headers = map[string]string{}
	ok = asynqx.EachField(message, func(f asynqx.Field) bool {
		switch f.Number {
		case 1:
			head.Type = string(f.Bytes)
		case asynqx.FieldHeaders:
			name, text, is := readEntry(f.Bytes)
			head.Headers[name] = string(text.Bytes)
			return is
		}
		return true
	})
	return head, ok
}

// readEntry reads an entry of a map.
func readEntry(text []byte) (key string, value asynqx.Field, ok bool) {
	ok = asynqx.EachField(text, func(f asynqx.Field) bool {
		switch f.Number {
		case asynqx.MapKey:
			key = string(f.Bytes)
		case asynqx.MapValue:
			value = f
		}
		return true
	})
	return key, value, ok
}
