package asynqx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
)

// Mover moves tasks among asynq's pending, waiting and active ones, many in each script call. See
// docs/decisions/0014. It is safe for concurrent use.
type Mover struct {
	rdb    redis.UniversalClient
	failed func(kind string) // called for each failed call, with "release_task"
}

// Outcome is what happened to a task that was to be moved.
type Outcome int8

const (
	// Unknown means that the task is not as asynq leaves one, or that Redis did not answer. It stays where it was.
	Unknown Outcome = iota
	// Moved means that it waited, and is in pending or active now.
	Moved
	// Gone means that there is no such task.
	Gone
	// Active means that it is active, and stays so.
	Active
	// Pending means that it was in pending already.
	Pending
	// Elsewhere means that it is archived, completed or waits for its group, and stays so.
	Elsewhere
	// StandsStill means that its queue is paused, or that no server serves it: the task waits where it was, or in pending.
	StandsStill
)

// outcomes maps the scripts' answers to outcomes; all others are unknown.
var outcomes = map[int64]Outcome{1: Moved, 0: Gone, -1: Active, -2: Pending, -3: Elsewhere, -5: StandsStill}

const (
	// LeaseFor is how long asynq considers a task running that it has handed out, unless it renews the lease.
	LeaseFor = 30 * time.Second
	// moveBatch is how many tasks one script call moves: no more than the server does in a millisecond.
	moveBatch = 100
)

// NewMover returns a mover. It does no I/O.
func NewMover(rdb redis.UniversalClient, failed func(kind string)) *Mover {
	return &Mover{rdb: rdb, failed: failed}
}

// Release moves the tasks of queue from scheduled or retry to pending, ahead of whatever is there, the first id first. It returns the
// outcome of each, in the order of ids, and may be repeated. After an error, which is Redis's, some outcomes are unknown, and asynq
// brings those tasks at their time. It costs one round trip for each hundred tasks.
func (m *Mover) Release(ctx context.Context, queue string, ids []string) (out []Outcome, err error) {
	out = make([]Outcome, len(ids))
	for to := len(ids); to > 0; { // the first tasks last: each call goes ahead of the previous one
		from := max(0, to-moveBatch)
		err = errors.Join(err, m.toPending(ctx, queue, ids[from:to], "", out[from:to]))
		to = from
	}
	return out, err
}

// Take moves tasks of queue from scheduled or retry straight to active, for a server of this process to run. It returns their messages,
// "" for a task that was not taken, and the outcome of each. Repeated under the same lease, as after an error, it returns the same, and
// GiveBack gives the tasks back under it. It costs one round trip for each hundred tasks.
func (m *Mover) Take(ctx context.Context, queue, lease string, ids []string) (messages []string, out []Outcome, err error) {
	for batch := range slices.Chunk(ids, moveBatch) {
		some, became, err := move(ctx, m.rdb, queue, "take", lease, batch)
		if err != nil {
			m.failed("release_task")
			return messages, out, fmt.Errorf("worker: take tasks of queue %s: %w", queue, err)
		}
		messages, out = append(messages, some...), append(out, became...)
	}
	return messages, out, nil
}

// GiveBack puts tasks that were taken under a lease and not run into pending, ahead of all others. Tasks that were moved meanwhile stay
// where they are. It costs one round trip for each hundred tasks.
func (m *Mover) GiveBack(ctx context.Context, queue, lease string, ids []string) error {
	for batch := range slices.Chunk(ids, moveBatch) {
		if err := m.toPending(ctx, queue, batch, lease, make([]Outcome, len(batch))); err != nil {
			return err
		}
	}
	return nil
}

// toPending releases tasks that wait and those that this process has taken under a lease.
func (m *Mover) toPending(ctx context.Context, queue string, ids []string, lease string, out []Outcome) error {
	_, became, err := move(ctx, m.rdb, queue, "release", lease, ids)
	if err != nil {
		m.failed("release_task")
		return fmt.Errorf("worker: release tasks of queue %s: %w", queue, err)
	}
	copy(out, became)
	return nil
}

// Park moves tasks of queue from pending to scheduled, until a time that is rounded up to a second, and reports which it moved:
// those that are no longer in pending stay where they are. After an error some may have been moved. It costs one round trip.
func (m *Mover) Park(ctx context.Context, queue string, ids []string, until time.Time) ([]bool, error) {
	_, out, err := move(ctx, m.rdb, queue, "defer", ownSecond(until), ids)
	if err != nil {
		return nil, fmt.Errorf("worker: park tasks of queue %s: %w", queue, err)
	}
	moved := make([]bool, len(ids))
	for i := range out {
		moved[i] = out[i] == Moved
	}
	return moved, nil
}

// move sends lua/asynq/move_tasks.lua. It returns the messages of tasks that were taken, and the outcome of each. The second key does
// not exist: with it a cluster refuses the call while it moves their slot.
func move(ctx context.Context, rdb redis.Scripter, queue, verb, score string, ids []string) (messages []string, out []Outcome, err error) {
	prefix := QueuePrefix(queue)
	args := []any{verb, score, strconv.FormatInt(time.Now().UnixNano(), 10)}
	for _, id := range ids {
		args = append(args, id)
	}
	answers, err := eval(ctx, rdb, lua.MoveTasks, []string{prefix, prefix + "moving"}, args).Slice()
	if err != nil {
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

// States returns asynq's states of tasks of a queue, "" for one that does not exist. It costs one round trip.
func States(ctx context.Context, rdb redis.UniversalClient, queue string, ids []string) ([]string, error) {
	read, states := make([]*redis.StringCmd, len(ids)), make([]string, len(ids))
	err := redisread.FromMaster(ctx, rdb, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			read[i] = pipe.HGet(ctx, taskKey(queue, id), "state")
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	for i := range ids {
		states[i] = read[i].Val()
	}
	return states, nil
}

// eval sends a script by its hash, or by its text if the server does not know it.
func eval(ctx context.Context, rdb redis.Scripter, script *lua.Script, keys []string, args []any) *redis.Cmd {
	cmd := rdb.EvalSha(ctx, script.SHA(), keys, args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = rdb.Eval(ctx, script.Source(), keys, args...)
	}
	return cmd
}

// NewLease returns the end of a lease that begins now, as Take expects it.
func NewLease() string { return ownSecond(time.Now().Add(LeaseFor)) }

// ownSecond returns the second at or after a time, as in asynq's sets, with a fraction that asynq ignores and that identifies a call.
func ownSecond(at time.Time) string {
	return fmt.Sprintf("%d.%06d", SecondAtOrAfter(at), 1+rand.N(999_999))
}

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
