package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisopen"
)

// Where a worker's embedded server listens, and the URL that reaches it; and how long opening a Redis takes at most.
const (
	EmbeddedAddr = redisopen.EmbeddedAddr
	EmbeddedURL  = redisopen.EmbeddedURL
	OpenTimeout  = redisopen.Timeout
)

// OpenRedis is redisopen.Open. What is wrong with the URL is bad usage.
func OpenRedis(ctx context.Context, url string) (redis.UniversalClient, error) {
	rdb, err := redisopen.Open(ctx, url)
	return rdb, urlIsUsage(err)
}

// OpenRedisFor is redisopen.OpenFor, likewise.
func OpenRedisFor(ctx context.Context, url string, tasks int) (redis.UniversalClient, error) {
	rdb, err := redisopen.OpenFor(ctx, url, tasks)
	return rdb, urlIsUsage(err)
}

func urlIsUsage(err error) error {
	if _, is := errors.AsType[*redisopen.URLError](err); is {
		return Usage(err)
	}
	return err
}

// RedisName returns the name of the server in url that may be shown and logged.
func RedisName(url string) string { return redisopen.Name(url) }

// Explain says what err, returned by a Redis command or a script, means and what to do about it.
func Explain(err error, url string) error { return redisopen.Explain(err, url) }

// RouteRedisLog sends what go-redis prints by itself to log, or nowhere when log is nil.
func RouteRedisLog(log *slog.Logger) { redisopen.RouteLog(log) }
