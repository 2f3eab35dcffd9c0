package asynqx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Mover puts waiting tasks into pending: by one script call for many if asynq's keys are known, and
// otherwise by asynq's Inspector, one by one. See docs/decisions/0014. It is safe for concurrent use.
type Mover struct {
	rdb       redis.UniversalClient
	inspector *asynq.Inspector
	log       *slog.Logger
	failed    func(kind string) // called for each failed call, with "release_task"

	Known   bool        // asynq's keys are known
	refused atomic.Bool // the server refused the script the last time

	parkAgain atomic.Int64 // no Park before then, in ns since 1970
}

// Outcome is what happened to a task that was to be released.
type Outcome int8

const (
	// Unknown means that it could not be determined. The task is where it was, and comes by itself, or
	// is in pending already.
	Unknown Outcome = iota
	// Moved means that it waited, and is in pending now.
	Moved
	// Gone means that there is no such task.
	Gone
	// Active means that it is active, and stays so.
	Active
	// Pending means that it was in pending already.
	Pending
	// Elsewhere means that it is archived, completed or waits for its group, and stays so.
	Elsewhere
	// StandsStill means that its queue is paused, or that no server serves it: the task waits where it
	// was, or in pending.
	StandsStill
)

// outcomes maps the script's answers to outcomes; all others are unknown.
var outcomes = map[int64]Outcome{1: Moved, 0: Gone, -1: Active, -2: Pending, -3: Elsewhere, -5: StandsStill}

const (
	// releaseBatch is how many tasks one script call moves, so that it occupies the server for a
	// millisecond at most.
	releaseBatch = 100
	// releaseAtOnce is how many calls of the Inspector run at once.
	releaseAtOnce = 8
)

// dearly describes the cost of the Inspector's way in the log.
const dearly = "each is woken by itself, in 12 commands and 4 round trips instead of 3 to 6 commands, and stands behind all that is pending"

// NewMover returns a mover. It does no I/O. It logs a line if the program was built with an asynq that
// is not known: tasks are then released one by one, behind what is in pending.
func NewMover(rdb redis.UniversalClient, inspector *asynq.Inspector, log *slog.Logger, failed func(kind string)) *Mover {
	info, _ := debug.ReadBuildInfo()
	fault := schemaFault(info, recordSchema())
	if fault != nil {
		log.Warn("unknown asynq version: "+dearly, "error", fault)
	}
	return &Mover{rdb: rdb, inspector: inspector, log: log, failed: failed, Known: fault == nil}
}

// Release moves the tasks of queue from scheduled or retry to pending, and returns the outcome of
// each, in the order of ids. The script puts them ahead of whatever is in pending, the first id first.
// It may be called again for the same tasks.
//
// The error says why outcomes are unknown; the other outcomes are valid all the same. It is
// asynq.ErrQueueNotFound if the Inspector was used and asynq:queues lacks the queue, as after a
// FLUSHALL: that does not mean that the task is gone, and asynq's servers bring it back at its time.
// When ctx has ended, no call is started; a call under way ends with the client's own time-outs.
func (r *Mover) Release(ctx context.Context, queue string, ids []string) ([]Outcome, error) {
	out := make([]Outcome, len(ids))
	var faults []error
	for to := len(ids); to > 0; { // the first tasks last: each call goes ahead of the previous one
		from := max(0, to-releaseBatch)
		if err := r.part(ctx, queue, ids[from:to], out[from:to]); err != nil {
			r.failed("release_task")
			faults = append(faults, fmt.Errorf("worker: release tasks of queue %s: %w", queue, err))
		}
		to = from
	}
	return out, errors.Join(faults...)
}

func (r *Mover) part(ctx context.Context, queue string, ids []string, out []Outcome) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.Known {
		err := r.byScript(ctx, queue, ids, out)
		if MayPass(err) || ctx.Err() != nil && err != nil {
			return err // Redis is away: the Inspector would not reach it either
		}
		r.note(ctx, err)
	}
	return r.byInspector(ctx, queue, ids, out)
}

// note logs when a server begins or ceases to refuse the script.
func (r *Mover) note(ctx context.Context, err error) {
	if err == nil {
		r.refused.Store(false)
		return
	}
	r.failed("release_task")
	if !r.refused.Swap(true) {
		r.log.WarnContext(ctx, "redis rejects the script that releases tasks: "+dearly, "error", err)
	}
}

var errOutcomes = errors.New("the reply is not the script's")

// byScript leaves as unknown the tasks whose state is not one that asynq leaves.
func (r *Mover) byScript(ctx context.Context, queue string, ids []string, out []Outcome) error {
	return r.toPending(ctx, queue, ids, "", out)
}

// toPending sends release_tasks, for tasks that wait and those that this process has taken under a
// lease.
func (r *Mover) toPending(ctx context.Context, queue string, ids []string, lease string, out []Outcome) error {
	keys, args := taskCall(queue, ids, strconv.FormatInt(time.Now().UnixNano(), 10), lease)
	prefix := QueuePrefix(queue)
	keys = append(keys, prefix+"pending", prefix+"scheduled", prefix+"retry", prefix+"paused", prefix+"active", prefix+"lease")
	answers, err := r.answers(ctx, lua.ReleaseTasks, keys, args, len(ids))
	for i, answer := range answers {
		out[i] = outcomes[answer]
	}
	return err
}

// taskCall returns the first keys of a script over tasks of a queue, and its arguments: those given,
// and the ids.
func taskCall(queue string, ids []string, first ...any) (keys []string, args []any) {
	keys, args = make([]string, 0, len(ids)+6), make([]any, 0, len(ids)+len(first))
	args = append(args, first...)
	for _, id := range ids {
		keys, args = append(keys, QueuePrefix(queue)+"t:"+id), append(args, id)
	}
	return keys, args
}

// eval sends a script by its hash, or by its text if the server does not know it.
func (r *Mover) eval(ctx context.Context, script *lua.Script, keys []string, args []any) *redis.Cmd {
	cmd := r.rdb.EvalSha(ctx, script.SHA(), keys, args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = r.rdb.Eval(ctx, script.Source(), keys, args...)
	}
	return cmd
}

// answers calls a script over asynq's keys that returns a number for each of n tasks.
func (r *Mover) answers(ctx context.Context, script *lua.Script, keys []string, args []any, n int) ([]int64, error) {
	answers, err := r.eval(ctx, script, keys, args).Int64Slice()
	if err == nil && len(answers) != n {
		err = errOutcomes
	}
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// byInspector releases the tasks whose outcome is unknown through asynq's public API.
func (r *Mover) byInspector(ctx context.Context, queue string, ids []string, out []Outcome) error {
	faults := make([]error, len(ids))
	slots := make(chan struct{}, releaseAtOnce)
	var wg sync.WaitGroup
	for i := range ids {
		if out[i] != Unknown {
			continue
		}
		slots <- struct{}{}
		if ctx.Err() != nil {
			faults[i] = ctx.Err()
			break
		}
		wg.Go(func() {
			out[i], faults[i] = r.run(queue, ids[i])
			<-slots
		})
	}
	wg.Wait()
	for i, err := range faults { // the first stands for all: they have one cause
		if err != nil {
			return fmt.Errorf("task %s: %w", ids[i], err)
		}
	}
	return nil
}

// run releases one task. RunTask would run an archived task too, so it is called only for tasks that
// wait, and again for a task that moved between the two calls.
func (r *Mover) run(queue, id string) (result Outcome, err error) {
	for range 2 {
		var info *asynq.TaskInfo
		if info, err = r.inspector.GetTaskInfo(queue, id); err == nil {
			switch info.State {
			case asynq.TaskStateScheduled, asynq.TaskStateRetry:
				err = r.inspector.RunTask(queue, id)
			case asynq.TaskStatePending:
				return Pending, nil
			case asynq.TaskStateActive:
				return Active, nil
			default:
				return Elsewhere, nil
			}
		}
		if err == nil {
			return Moved, nil
		} else if errors.Is(err, asynq.ErrTaskNotFound) {
			return Gone, nil
		}
	}
	return Unknown, err
}
