package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RouteRedisLog sends what go-redis prints by itself to log at level Debug,
// or nowhere when log is nil. go-redis would print it to stderr. It is one
// setting for the whole process, so only a program may call it.
func RouteRedisLog(log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	redis.SetLogger(redisLog{log})
}

type redisLog struct{ log *slog.Logger }

// Printf is called by go-redis, from any goroutine.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if !l.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	l.log.DebugContext(ctx, "go-redis", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
}
