package asynqread

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Backlog returns how many tasks of queues wait: those in pending, scheduled and retry. It costs one
// round trip of three commands a queue.
func Backlog(ctx context.Context, rdb redis.UniversalClient, queues []string) (n int64, err error) {
	cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, name := range queues {
			pipe.LLen(ctx, asynqx.QueuePrefix(name)+"pending")
			pipe.ZCard(ctx, asynqx.QueuePrefix(name)+"scheduled")
			pipe.ZCard(ctx, asynqx.QueuePrefix(name)+"retry")
		}
		return nil
	})
	for _, cmd := range cmds {
		if counted, is := cmd.(*redis.IntCmd); is {
			n += counted.Val()
		}
	}
	return n, err
}
