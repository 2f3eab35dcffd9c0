package asynqx

import (
	"context"
	"fmt"
	"time"

	"github.com/headway-go/headway/lua"
)

// LeaseFor is how long asynq considers a task running that it has handed out, unless it renews the
// lease.
const LeaseFor = 30 * time.Second

// Take moves tasks of queue from scheduled or retry straight to active, for a server of this process
// to run. It returns their messages, "" for a task that was not taken, and the outcome of each. lease
// identifies the call: repeated under the same lease it returns the same, so it may be repeated after
// an error, and GiveBack gives the tasks back under it. It costs one round trip for each hundred
// tasks. Do not call it if Takes is false.
func (r *Mover) Take(ctx context.Context, queue, lease string, ids []string) (messages []string, out []Outcome, err error) {
	for len(ids) > 0 {
		n := min(len(ids), releaseBatch)
		some, became, err := r.takePart(ctx, queue, lease, ids[:n])
		if err != nil {
			r.failed("release_task")
			return messages, out, fmt.Errorf("worker: take tasks of queue %s: %w", queue, err)
		}
		messages, out, ids = append(messages, some...), append(out, became...), ids[n:]
	}
	return messages, out, nil
}

// Takes reports whether tasks can be taken: asynq's keys are known, and the server has not refused a
// script over them.
func (r *Mover) Takes() bool { return r.Known && !r.refused.Load() }

// NewLease returns the end of a lease that begins now, as Take expects it.
func NewLease() string { return ownSecond(time.Now().Add(LeaseFor)) }

func (r *Mover) takePart(ctx context.Context, queue, lease string, ids []string) (messages []string, out []Outcome, err error) {
	keys, args := taskCall(queue, ids, lease)
	prefix := QueuePrefix(queue)
	keys = append(keys, prefix+"active", prefix+"lease", prefix+"scheduled", prefix+"retry", prefix+"paused")
	answers, err := r.eval(ctx, lua.TakeTasks, keys, args).Slice()
	if err == nil && len(answers) != len(ids) {
		err = errOutcomes
	}
	if err != nil {
		if !MayPass(err) && ctx.Err() == nil {
			r.note(ctx, err)
		}
		return nil, nil, err
	}
	messages, out = make([]string, len(ids)), make([]Outcome, len(ids))
	for i, answer := range answers {
		switch a := answer.(type) {
		case string:
			messages[i], out[i] = a, Moved
		case int64:
			out[i] = outcomes[a]
		}
	}
	return messages, out, nil
}

// GiveBack puts tasks that were taken under a lease and not run into pending, ahead of all others.
// Tasks that asynq or another process has moved meanwhile stay where they are.
func (r *Mover) GiveBack(ctx context.Context, queue, lease string, ids []string) error {
	for len(ids) > 0 {
		n := min(len(ids), releaseBatch)
		if err := r.toPending(ctx, queue, ids[:n], lease, make([]Outcome, n)); err != nil {
			r.failed("release_task")
			return fmt.Errorf("worker: give tasks of queue %s back: %w", queue, err)
		}
		ids = ids[n:]
	}
	return nil
}
