// Package asynqx contains what depends on asynq's internals: the keys and scripts with which asynq
// keeps tasks, and the Redis client that paces its servers. A [Client] stands between a server and
// Redis. Its [Pacer] decides when the server polls for tasks, and hands it those that a [Mover] has
// taken. [Slots] count what it runs. asynq knows none of them.
//
// The package knows nothing about limits. Only package worker uses it.
package asynqx

import (
	"context"
	"strings"
	"time"
)

// taskKey returns asynq's key of a task.
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }

// QueuePrefix returns the prefix of asynq's keys of a queue.
func QueuePrefix(queue string) string { return "asynq:{" + queue + "}:" }

// QueueName returns the queue whose keys have a prefix.
func QueueName(prefix string) string {
	return strings.TrimSuffix(strings.TrimPrefix(prefix, "asynq:{"), "}:")
}

// WaitingText is the beginning of the last error of a task that waits and has not failed before.
const WaitingText = "headway: waiting"

// IsWaiting reports whether the text of a last error is Headway's.
func IsWaiting(text string) bool { return strings.HasPrefix(text, WaitingText) }

// SecondAtOrAfter returns the whole second, since 1970, at which a task is not early.
func SecondAtOrAfter(at time.Time) int64 { return at.Add(time.Second - 1).Unix() }

// Sleep waits, and returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
