package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// away is a hook that makes all that is asked of Redis late, each way, by about so much.
type away time.Duration

func (a away) wait() {
	d := time.Duration(a)
	<-time.After(d - d/4 + rand.N(d/2+1))
}

func (a away) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a away) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.wait()
		defer a.wait()
		return next(ctx, cmd)
	}
}

func (a away) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		a.wait()
		defer a.wait()
		return next(ctx, cmds)
	}
}
