package asynqx

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Held is a waiting task that Hold has made active, so that no server can take it.
type Held struct {
	Queue, ID string

	rdb     redis.UniversalClient
	state   string // the set that it waited in
	score   float64
	lease   string
	message string
}

// Hold makes a task active that waits in scheduled or retry, whether its queue is paused or not. The
// outcome is Moved, or what the task is instead; then nothing was changed. If the caller dies before
// PutBack, asynq takes the run for lost after LeaseFor and brings the task back. Costs two round trips.
func Hold(ctx context.Context, rdb redis.UniversalClient, queue, id string) (*Held, Outcome, error) {
	h := &Held{Queue: queue, ID: id, rdb: rdb, lease: NewLease(), state: "scheduled"}
	prefix := QueuePrefix(queue)
	at, err := rdb.ZScore(ctx, prefix+h.state, id).Result()
	if errors.Is(err, redis.Nil) {
		h.state = "retry"
		at, err = rdb.ZScore(ctx, prefix+h.state, id).Result()
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, Unknown, fmt.Errorf("worker: hold task %s of queue %s: %w", id, queue, err)
	}
	h.score = at
	messages, out, err := move(ctx, rdb, queue, "hold", h.lease, []string{id})
	if err != nil {
		return nil, Unknown, fmt.Errorf("worker: hold task %s of queue %s: %w", id, queue, err)
	}
	if h.message = messages[0]; out[0] != Moved {
		return nil, out[0], nil
	}
	return h, Moved, nil
}

// PutBack returns the task to the set that it waited in, with its headers changed: an empty value
// removes a header. asynq brings it at its former time, or at latest if that is sooner and not zero.
// It changes nothing if asynq has taken the task back meanwhile. Costs one round trip.
func (h *Held) PutBack(ctx context.Context, headers map[string]string, latest time.Time) error {
	prefix, score := QueuePrefix(h.Queue), h.score
	if at := float64(SecondAtOrAfter(latest)); !latest.IsZero() && at < score {
		score = at
	}
	message, ok := withHeaders([]byte(h.message), headers)
	if !ok {
		return fmt.Errorf("worker: put task %s of queue %s back: its message is not asynq's", h.ID, h.Queue)
	}
	_, fraction, _ := strings.Cut(h.lease, ".")
	keys := []string{taskKey(h.Queue, h.ID), prefix + "active", prefix + "lease", prefix + h.state}
	err := putBack().Run(ctx, h.rdb, keys, h.ID, message, strconv.FormatFloat(score, 'f', -1, 64), h.state, 3, fraction).Err()
	if err != nil && !redis.HasErrorPrefix(err, string(goneEarlier)) && !redis.HasErrorPrefix(err, "FENCED") {
		return fmt.Errorf("worker: put task %s of queue %s back: %w", h.ID, h.Queue, err)
	}
	return nil
}
