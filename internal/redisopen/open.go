// Package redisopen connects a program to the Redis that a URL names, and says what is wrong with a URL or a Redis that cannot be used, and
// what to do about it, without a password.
package redisopen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
)

// Timeout bounds how long Open takes, whatever the URL says.
const Timeout = 5 * time.Second

// Open connects to the Redis that url names and makes sure that it can be used: it answers, accepts the
// credentials, is 6.2 or newer and takes writes. It needs Timeout at most and writes nothing. url has
// any form that go-redis and asynq take, or is "embedded" for a worker's own server.
//
// Errors are *diag.Error, in a *URLError if the URL is to blame, and hold no password, or ctx's error when ctx ended. Closing the client is the caller's.
func Open(ctx context.Context, url string) (redis.UniversalClient, error) {
	return open(ctx, url, 0)
}

// OpenFor is Open for a program that runs so many tasks at once: unless url has a pool_size, each may have a connection,
// and 16 are left for what else the program asks. go-redis's own limit, ten for each processor, has tasks wait for connections.
func OpenFor(ctx context.Context, url string, tasks int) (redis.UniversalClient, error) {
	return open(ctx, url, tasks+16)
}

// URLError is the error of a URL that names no Redis.
type URLError struct{ error }

// Unwrap returns the *diag.Error.
func (e *URLError) Unwrap() error { return e.error }

func open(ctx context.Context, url string, pool int) (redis.UniversalClient, error) {
	t, err := parseRedisURL(url)
	if err != nil {
		return nil, &URLError{err}
	}
	rdb, err := t.client(pool)
	if err != nil {
		return nil, &URLError{err}
	}
	checked, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := t.check(checked, rdb); err != nil {
		_ = rdb.Close()
		return nil, cmp.Or(ctx.Err(), err) // a program that was stopped is not Redis's fault
	}
	return rdb, nil
}

// Name returns the name of the server in url that may be shown and
// logged: hosts, socket or master, never a user name or password.
func Name(url string) string {
	t, err := parseRedisURL(url)
	if err != nil {
		return "(not a Redis URL)"
	}
	return t.name
}

// check asks whether Redis can be used. The write changes nothing, since XX wants a key that never exists; it
// fails on a read-only replica, a full server and one that cannot save.
func (t *target) check(ctx context.Context, rdb redis.UniversalClient) error {
	if err := rdb.Ping(ctx).Err(); err != nil {
		return t.explain(err)
	}
	info, err := rdb.Info(ctx, "server").Result()
	_, refused := errors.AsType[redis.Error](err) // some users may not run INFO, and the embedded server has no such section
	if err != nil && !refused {
		return t.explain(err)
	}
	if m := redisVersion.FindStringSubmatch(info); m != nil && (len(m[2]) == 1 && m[2] < "6" || m[2] == "6" && m[3] < "2") {
		return diag.Errorf("a Redis 6.2 or newer, or Valkey; without -redis the worker starts a server of its own",
			"Redis at %s is version %s, and 6.2 is the oldest that works", t.name, m[1])
	}
	err = rdb.SetArgs(ctx, "hw:probe", "", redis.SetArgs{Mode: "XX"}).Err()
	if err == nil || errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
		return nil // a user that may not SET may still run the scripts
	}
	return t.explain(err)
}

var redisVersion = regexp.MustCompile(`(?m)^redis_version:(([0-9]+)\.([0-9]+)\S*)`)

// RouteLog sends what go-redis prints by itself to log at level Debug, or nowhere when log is nil. go-redis would print it
// to stderr. It is one setting for the whole process, so only a program may call it.
func RouteLog(log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	redis.SetLogger(redisLog{log})
}

type redisLog struct{ log *slog.Logger }

// Printf is called by go-redis, from any goroutine.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "go-redis", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}
