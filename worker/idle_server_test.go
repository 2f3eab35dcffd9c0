package worker

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// looks counts the looks for tasks that reach Redis, and the glances that take their place.
type looks struct {
	failing
	mu sync.Mutex
	n  int
}

func (l *looks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, ok := asynqx.Dequeues(context.Background(), scriptKeys(cmd)); ok {
			l.mu.Lock()
			l.n++
			l.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (l *looks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "exists" {
			l.mu.Lock()
			l.n++
			l.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}
