package asynqx

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// forwards tells the script by which asynq moves tasks that are due into pending, and returns the prefix of their queue's keys.
func forwards(keys []string) (queue string, ok bool) {
	if len(keys) != 2 || !strings.HasSuffix(keys[0], "}:scheduled") && !strings.HasSuffix(keys[0], "}:retry") {
		return "", false
	}
	return strings.CutSuffix(keys[1], "pending")
}

// forward sends that script, where a task is due: to ask first is one command, the script that finds none is two.
// asynq looks into two sets of each queue twice a second.
func (g *Client) forward(ctx context.Context, queue string, keys []string, args []any, its script) *redis.Cmd {
	if len(args) > 0 && !g.due(ctx, keys[0], args[0]) {
		return redis.NewCmdResult(int64(0), nil)
	}
	cmd := its(ctx, g.UniversalClient, args)
	n, _ := cmd.Int()
	g.cfg.Forwarded(QueueName(queue), n)
	return cmd
}

// due says whether a sorted set may have a task that is due now, which is in seconds since 1970. Where Redis does not
// answer it may: the script brings the error.
func (g *Client) due(ctx context.Context, set string, now any) bool {
	seconds, known := now.(int64)
	if !known {
		return true
	}
	var due *redis.StringSliceCmd
	err := redisread.FromMaster(ctx, g.UniversalClient, func(pipe redis.Pipeliner) error {
		due = pipe.ZRangeByScore(ctx, set, &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(seconds, 10), Count: 1})
		return nil
	})
	return err != nil || len(due.Val()) > 0
}
