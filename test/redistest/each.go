package redistest

import (
	"cmp"
	"context"

	"github.com/redis/go-redis/v9"
)

// Each is a hook of what becomes of each command of a client, in a pipeline too: it sends the command, or does not, and returns what the
// client shall see of it.
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
