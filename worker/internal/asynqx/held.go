package asynqx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"
)

// Held is a waiting task that Hold has made active, so that no server can take it.
type Held struct {
	Queue, ID string

	rdb   redis.UniversalClient
	state string // the set that it waited in
	score float64
	lease string
}

// holdTries is how often a transaction is tried whose task changes meanwhile.
const holdTries = 5

// Hold makes a task active that waits in scheduled or retry, whether its queue is paused or not. The
// outcome is Moved, or what the task is instead; then nothing was changed. If the caller dies before
// PutBack, asynq takes the run for lost after LeaseFor and brings the task back. Costs four round
// trips.
func Hold(ctx context.Context, rdb redis.UniversalClient, queue, id string) (*Held, Outcome, error) {
	h := &Held{Queue: queue, ID: id, rdb: rdb, lease: NewLease()}
	prefix, result := QueuePrefix(queue), Unknown
	err := h.transact(ctx, func(tx *redis.Tx, state string) error {
		if result = waiting(state); result != Moved {
			return nil
		}
		score, err := tx.ZScore(ctx, prefix+state, id).Result()
		if err != nil {
			return err
		}
		ends, err := strconv.ParseFloat(h.lease, 64)
		if err != nil {
			return err
		}
		h.state, h.score = state, score
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.ZAdd(ctx, prefix+"lease", redis.Z{Score: ends, Member: id})
			p.LPush(ctx, prefix+"active", id)
			p.ZRem(ctx, prefix+state, id)
			p.HSet(ctx, taskKey(queue, id), "state", "active")
			return nil
		})
		return err
	})
	if err != nil {
		return nil, Unknown, fmt.Errorf("worker: hold task %s of queue %s: %w", id, queue, err)
	}
	return h, result, nil
}

// waiting returns Moved for a state in which a task can be held.
func waiting(state string) Outcome {
	switch state {
	case "scheduled", "retry":
		return Moved
	case "pending":
		return Pending
	case "active":
		return Active
	case "":
		return Gone
	}
	return Elsewhere
}

// PutBack returns the task to the set that it waited in, with its headers changed: an empty value
// removes a header. asynq brings it at its former time, or at latest if that is sooner and not zero.
// It changes nothing if asynq has taken the task back meanwhile. Costs four round trips.
func (h *Held) PutBack(ctx context.Context, headers map[string]string, latest time.Time) error {
	prefix, score := QueuePrefix(h.Queue), h.score
	if at := float64(SecondAtOrAfter(latest)); !latest.IsZero() && at < score {
		score = at
	}
	err := h.transact(ctx, func(tx *redis.Tx, state string) error {
		mine, err := tx.ZScore(ctx, prefix+"lease", h.ID).Result()
		if ends, _ := strconv.ParseFloat(h.lease, 64); errors.Is(err, redis.Nil) || err == nil && (state != "active" || mine != ends) {
			return nil
		} else if err != nil {
			return err
		}
		return rewritten(ctx, tx, taskKey(h.Queue, h.ID), headers, func(p redis.Pipeliner) {
			p.ZAdd(ctx, prefix+h.state, redis.Z{Score: score, Member: h.ID})
			p.HSet(ctx, taskKey(h.Queue, h.ID), "state", h.state)
			p.LRem(ctx, prefix+"active", 1, h.ID)
			p.ZRem(ctx, prefix+"lease", h.ID)
		})
	})
	if err != nil {
		return fmt.Errorf("worker: put task %s of queue %s back: %w", h.ID, h.Queue, err)
	}
	return nil
}

// RewritePending changes the headers of a task in pending, as PutBack does. The outcome is Pending, or
// what the task is instead. Costs three round trips.
func RewritePending(ctx context.Context, rdb redis.UniversalClient, queue, id string, headers map[string]string) (Outcome, error) {
	h, result := &Held{Queue: queue, ID: id, rdb: rdb}, Unknown
	err := h.transact(ctx, func(tx *redis.Tx, state string) error {
		if result = waiting(state); result != Pending {
			return nil
		}
		return rewritten(ctx, tx, taskKey(queue, id), headers, func(redis.Pipeliner) {})
	})
	if err != nil {
		return Unknown, fmt.Errorf("worker: change task %s of queue %s: %w", id, queue, err)
	}
	return result, nil
}

// transact runs a transaction that fails if the task changes meanwhile, and then tries it again. change returns redis.Nil
// where the task has left, since its state was read, the set or the record that the state names.
func (h *Held) transact(ctx context.Context, change func(tx *redis.Tx, state string) error) error {
	key := taskKey(h.Queue, h.ID)
	for range holdTries {
		err := h.rdb.Watch(ctx, func(tx *redis.Tx) error {
			state, err := tx.HGet(ctx, key, "state").Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			return change(tx, state)
		}, key)
		if !errors.Is(err, redis.TxFailedErr) && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return redis.TxFailedErr
}

// rewritten sends a transaction that also changes headers in a task's message.
func rewritten(ctx context.Context, tx *redis.Tx, key string, headers map[string]string, rest func(redis.Pipeliner)) error {
	var message []byte
	if len(headers) > 0 {
		text, err := tx.HGet(ctx, key, "msg").Bytes()
		if err != nil {
			return err
		}
		var ok bool
		if message, ok = withHeaders(text, headers); !ok {
			return errors.New("its message is not asynq's")
		}
	}
	_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		if message != nil {
			p.HSet(ctx, key, "msg", message)
		} else {
			p.Exists(ctx, key)
		}
		rest(p)
		return nil
	})
	return err
}

// withHeaders copies a message with some headers changed. It returns false if message is not asynq's.
func withHeaders(message []byte, headers map[string]string) (changed []byte, ok bool) {
	for rest := message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, false
		}
		its := rest[:n]
		rest = rest[n:]
		if number == fieldHeaders && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(its)
			entry, _ := protowire.ConsumeBytes(its[tag:])
			if _, other := headers[field(entry, mapKey)]; other {
				continue
			}
		}
		changed = append(changed, its...)
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if headers[name] == "" {
			continue
		}
		var entry []byte
		entry = protowire.AppendString(protowire.AppendTag(entry, mapKey, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, mapValue, protowire.BytesType), headers[name])
		changed = protowire.AppendBytes(protowire.AppendTag(changed, fieldHeaders, protowire.BytesType), entry)
	}
	return changed, true
}
