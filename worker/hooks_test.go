package worker

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// each is a hook of what the network does to each command of a client, in a pipeline too.
type each func(cmd redis.Cmder, send func() error) error

func (each) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e each) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		cmd.SetErr(e(cmd, func() error { return next(ctx, cmd) }))
		return cmd.Err()
	}
}

func (e each) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			cmd.SetErr(e(cmd, func() error { return cmp.Or(next(ctx, []redis.Cmder{cmd}), cmd.Err()) }))
			first = cmp.Or(first, cmd.Err())
		}
		return first
	}
}

var (
	errAway = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errCut  = &net.OpError{Op: "read", Err: errors.New("connection reset")}
)

func scriptKeys(cmd redis.Cmder) (keys []string) {
	args := cmd.Args()
	if name, _ := args[0].(string); name != "evalsha" && name != "eval" || len(args) < 4 {
		return nil
	}
	n, _ := args[2].(int)
	for _, key := range args[3 : 3+n] {
		keys = append(keys, key.(string))
	}
	return keys
}

// endsRun tells asynq's retry, done, complete, archive and requeue from dequeue, which names the paused list.
func endsRun(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	bounded, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	return asynqx.EndsRun(bounded, keys) && strings.HasPrefix(keys[0], "asynq:") &&
		!slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":paused") })
}

// putsBack says whether a command is asynq's Retry.
func putsBack(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	return slices.Contains(keys, "asynq:{default}:active") && slices.Contains(keys, "asynq:{default}:retry") &&
		slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, ":failed") })
}

// failEnds fails so many of the scripts that end a run, and returns how many are left to fail.
func (s *system) failEnds(n int64) (left *atomic.Int64) {
	left = new(atomic.Int64)
	left.Store(n)
	s.rdb.AddHook(each(func(cmd redis.Cmder, send func() error) error {
		if endsRun(cmd) && left.Add(-1) >= 0 {
			return errCut
		}
		return send()
	}))
	return left
}

// heldUp is a command that waits on its way to Redis until it is released.
type heldUp struct{ begun, release chan struct{} }

// holdUp holds the first command up that is meant.
func (s *system) holdUp(meant func(cmd redis.Cmder) bool) heldUp {
	held := heldUp{make(chan struct{}), make(chan struct{})}
	var done atomic.Bool
	s.rdb.AddHook(each(func(cmd redis.Cmder, send func() error) error {
		if meant(cmd) && done.CompareAndSwap(false, true) {
			close(held.begun)
			<-held.release
		}
		return send()
	}))
	return held
}
