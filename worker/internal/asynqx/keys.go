// Package asynqx holds what depends on asynq's inside: the keys and scripts with which asynq keeps tasks, and the Redis
// client through which its servers are paced. A [Client] stands between a server and Redis; its [Pacer] decides when the
// server asks for tasks and hands it those that a [Mover] has taken; [Slots] count what it runs. asynq knows of none.
//
// It knows nothing of limits. Package worker is its one user.
package asynqx

import (
	"context"
	"strings"
	"time"
)

// taskKey is asynq's key of a task.
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }

// QueuePrefix begins asynq's keys of a queue.
func QueuePrefix(queue string) string { return "asynq:{" + queue + "}:" }

// QueueName is the queue whose keys begin with a prefix.
func QueueName(prefix string) string {
	return strings.TrimSuffix(strings.TrimPrefix(prefix, "asynq:{"), "}:")
}

// CarrierType is the type of the tasks that carry others over into the form that package queue makes.
const CarrierType = "headway:carry"

// CarrierID is the id of what carries a task.
func CarrierID(id string) string { return CarrierType + ":" + id }

// WaitingText begins the text of a task that waits and has not failed before.
const WaitingText = "headway: waiting"

// IsWaiting tells whether the text of a last error is ours.
func IsWaiting(text string) bool { return strings.HasPrefix(text, WaitingText) }

// SecondAtOrAfter is the whole second, since the epoch, at which a task is not early.
func SecondAtOrAfter(at time.Time) int64 { return at.Add(time.Second - 1).Unix() }

// Sleep waits, and reports false when ctx ended first.
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
