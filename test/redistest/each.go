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

// ProcessPipelineHook is called for a pipeline, whose commands then go one by one. A transaction goes as it is.
func (e Each) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (first error) {
		if cmds[0].Name() == "multi" {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(e(cmd, func() error { return cmp.Or(next(ctx, []redis.Cmder{cmd}), cmd.Err()) }))
			first = cmp.Or(first, cmd.Err())
		}
		return first
	}
}

// Around is a hook that sees each command before it is sent and after it was answered. Unlike Each it leaves a pipeline whole.
type Around struct {
	Before, After func(cmd redis.Cmder) // nil: not asked
}

// DialHook lets connections be.
func (Around) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is called for a command.
func (a Around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return a.around([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook is called for a pipeline.
func (a Around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return a.around(cmds, func() error { return next(ctx, cmds) })
	}
}

func (a Around) around(cmds []redis.Cmder, send func() error) error {
	for _, cmd := range cmds {
		if a.Before != nil {
			a.Before(cmd)
		}
	}
	err := send()
	for _, cmd := range cmds {
		if a.After != nil {
			a.After(cmd)
		}
	}
	return err
}
