package redistest

import (
	"cmp"
	"context"

	"github.com/redis/go-redis/v9"
)

// Each is a hook that handles each command of a client, also of a pipeline. It calls send to send the command, or does not, and
// returns the error that the client sees.
type Each func(cmd redis.Cmder, send func() error) error

// DialHook lets connections be.
func (Each) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is called for a command.
func (e Each) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		cmd.SetErr(e(cmd, func() error { return next(ctx, cmd) }))
		return cmd.Err()
	}
}

// ProcessPipelineHook is called for a pipeline, whose commands then go one by one.
func (e Each) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			cmd.SetErr(e(cmd, func() error { return cmp.Or(next(ctx, []redis.Cmder{cmd}), cmd.Err()) }))
			first = cmp.Or(first, cmd.Err())
		}
		return first
	}
}
