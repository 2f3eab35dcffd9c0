package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// OpenTimeout bounds how long OpenRedis takes, whatever the URL says.
const OpenTimeout = 5 * time.Second

// minRedis is the oldest Redis that has every command used here and in asynq.
var minRedis = [2]int{6, 2}

// OpenRedis connects to the Redis that url names and makes sure that it can
// be used: it answers, accepts the credentials, is 6.2 or newer and takes
// writes. It needs OpenTimeout at most and writes nothing.
//
// Every form that go-redis and asynq take is understood: redis://, rediss://,
// unix:// and redis-socket://, redis-sentinel://H1:P,H2:P/DB?master=NAME and
// redis+cluster://H:P?addr=H:P (with rediss for TLS), and "embedded" for a
// worker's own server. In a Sentinel URL, what stands before @ is for the
// sentinels; ?username= and ?password= are for the master.
//
// Errors are *Error and hold no password, or ctx's error when ctx ended.
// Closing the client is the caller's.
func OpenRedis(ctx context.Context, url string) (redis.UniversalClient, error) {
	return openRedis(ctx, url, 0, OpenTimeout)
}

// OpenRedisFor is OpenRedis for a program that runs so many tasks at once: unless url has a pool_size, each may have a connection,
// and 16 are left for what else the program asks. go-redis's own limit, ten for each processor, has tasks wait for connections.
func OpenRedisFor(ctx context.Context, url string, tasks int) (redis.UniversalClient, error) {
	return openRedis(ctx, url, tasks+16, OpenTimeout)
}

func openRedis(ctx context.Context, url string, pool int, timeout time.Duration) (redis.UniversalClient, error) {
	if url == "embedded" {
		url = EmbeddedURL
	}
	t, err := parseRedisURL(url)
	if err != nil {
		return nil, usageError{err}
	}
	t.pool(pool)
	rdb, err := t.client()
	if err != nil {
		return nil, usageError{err}
	}
	checked, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := t.check(checked, rdb); err != nil {
		_ = rdb.Close()
		if cause := ctx.Err(); cause != nil {
			return nil, cause // the program was stopped: not Redis's fault
		}
		return nil, err
	}
	return rdb, nil
}

// RedisName returns the name of the server in url that may be shown and
// logged: hosts, socket or master, never a user name or password.
func RedisName(url string) string {
	if url == "embedded" {
		url = EmbeddedURL
	}
	t, err := parseRedisURL(url)
	if err != nil {
		return "(not a Redis URL)"
	}
	return t.name
}

func (t *target) check(ctx context.Context, rdb redis.UniversalClient) error {
	if err := rdb.Ping(ctx).Err(); err != nil {
		return t.explain(err)
	}
	if err := t.checkVersion(ctx, rdb); err != nil {
		return err
	}
	if err := probeWrite(ctx, rdb); err != nil {
		return t.explain(err)
	}
	return nil
}

// Probe returns what Redis says when it does not answer or takes no writes. It
// costs two round trips and writes nothing; Explain says what its error means.
func Probe(ctx context.Context, rdb redis.UniversalClient) error {
	if err := rdb.Ping(ctx).Err(); err != nil {
		return err
	}
	return probeWrite(ctx, rdb)
}

// probeWrite is a write that changes nothing, since XX wants a key that never
// exists. It fails on a read-only replica, a full server and one that cannot save.
func probeWrite(ctx context.Context, rdb redis.UniversalClient) error {
	err := rdb.SetArgs(ctx, "hw:probe", "", redis.SetArgs{Mode: "XX"}).Err()
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
		return nil // a user that may not SET may still run the scripts
	}
	return err
}

// checkVersion tolerates a server that will not tell: some users may not run
// INFO, and the embedded server has no such section.
func (t *target) checkVersion(ctx context.Context, rdb redis.UniversalClient) error {
	info, err := rdb.Info(ctx, "server").Result()
	var answer redis.Error
	if errors.As(err, &answer) {
		return nil
	}
	if err != nil {
		return t.explain(err)
	}
	version := infoField(info, "redis_version")
	if !olderThan(version, minRedis) {
		return nil
	}
	return Errorf("a Redis 6.2 or newer, or Valkey; without -redis the worker starts a server of its own",
		"Redis at %s is version %s, and 6.2 is the oldest that works", t.name, version)
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// olderThan reports whether version is known to be below least.
func olderThan(version string, least [2]int) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, err1 := strconv.Atoi(major)
	mi, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil {
		return false
	}
	return ma < least[0] || ma == least[0] && mi < least[1]
}

// usageError marks an error of what was typed, such as a URL that is none.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Code returns the exit code for an error: ExitUsage for what was typed wrong,
// such as a Redis URL that is none, otherwise ExitFailed.
func Code(err error) int {
	if errors.As(err, new(usageError)) {
		return ExitUsage
	}
	return ExitFailed
}
