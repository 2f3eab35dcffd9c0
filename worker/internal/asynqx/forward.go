package asynqx

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// forwards reports whether keys belong to the script by which asynq moves due tasks into pending.
func forwards(keys []string) bool {
	return len(keys) == 2 && (strings.HasSuffix(keys[0], "}:scheduled") || strings.HasSuffix(keys[0], "}:retry")) && strings.HasSuffix(keys[1], "}:pending")
}

// forward sends that script if a task is due: the check is one command, and a script that finds no
// task is two. asynq checks two sets of each queue twice a second.
func (g *Client) forward(ctx context.Context, keys []string, args []any, its script) *redis.Cmd {
	if len(args) > 0 && !g.due(ctx, keys[0], args[0]) {
		return redis.NewCmdResult(int64(0), nil)
	}
	return its(ctx, g.UniversalClient, args)
}

// due reports whether a sorted set may have a task that is due at now, in seconds since 1970. It is
// true if Redis does not answer: the script returns the error.
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
