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
	pending, active, paused := make([]*redis.IntCmd, len(names)), make([]*redis.IntCmd, len(names)), make([]*redis.IntCmd, len(names))
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			pending[i] = pipe.LLen(ctx, asynqx.QueuePrefix(name)+"pending")
			active[i] = pipe.LLen(ctx, asynqx.QueuePrefix(name)+"active")
			paused[i] = pipe.Exists(ctx, asynqx.QueuePrefix(name)+"paused")
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	for i, name := range names {
		list = append(list, QueueTasks{name, pending[i].Val(), active[i].Val(), paused[i].Val() > 0})
	}
	return list, more, nil
}

// Backlog counts the tasks of queues in pending, scheduled and retry. It costs one round trip of three commands a queue.
func Backlog(ctx context.Context, rdb redis.UniversalClient, queues []string) (n int64, err error) {
	cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, name := range queues {
			pipe.LLen(ctx, asynqx.QueuePrefix(name)+"pending")
			pipe.ZCard(ctx, asynqx.QueuePrefix(name)+"scheduled")
			pipe.ZCard(ctx, asynqx.QueuePrefix(name)+"retry")
		}
		return nil
	})
	for _, cmd := range cmds {
		if counted, is := cmd.(*redis.IntCmd); is {
			n += counted.Val()
		}
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
	if len(tasks) == 0 {
		return nil, nil
	}
	read := make([]*redis.SliceCmd, len(tasks))
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, t := range tasks {
			read[i] = pipe.HMGet(ctx, asynqx.QueuePrefix(t.Queue)+"t:"+t.ID, "msg") // no error for a task that has gone
		}
		return nil
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
