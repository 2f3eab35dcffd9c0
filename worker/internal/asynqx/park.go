package asynqx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headway-go/headway/lua"
)

// Parks reports whether tasks can be parked: asynq's keys are known, and the server has not refused
// the script a moment ago.
func (r *Mover) Parks() bool { return r.Known && time.Now().UnixNano() >= r.parkAgain.Load() }

// parkPause is how long the script is not sent to a server that refused it.
const parkPause = time.Minute

// Park moves tasks of queue from pending to scheduled, until a time that is rounded up to a second,
// and reports which it moved: those that are no longer in pending stay where they are. After an error
// some may have been moved. It costs one round trip. Do not call it if Parks is false.
func (r *Mover) Park(ctx context.Context, queue string, ids []string, until time.Time) ([]bool, error) {
	keys, args := taskCall(queue, ids, ownSecond(until))
	keys = append(keys, QueuePrefix(queue)+"pending", QueuePrefix(queue)+"scheduled")
	answers, err := r.answers(ctx, lua.DeferTasks, keys, args, len(ids))
	if err != nil {
		if !MayPass(err) && ctx.Err() == nil {
			r.parkAgain.Store(time.Now().Add(parkPause).UnixNano())
		}
		return nil, fmt.Errorf("worker: park tasks of queue %s: %w", queue, err)
	}
	moved := make([]bool, len(ids))
	for i, answer := range answers {
		moved[i] = answer == 1
	}
	return moved, nil
}

// ownSecond returns the second at or after a time, as in asynq's sets, with a fraction that asynq
// ignores: it distinguishes a call that is sent again from another one.
func ownSecond(at time.Time) string {
	return fmt.Sprintf("%d.%06d", SecondAtOrAfter(at), 1+rand.N(999_999))
}
