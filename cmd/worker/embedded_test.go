package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

func newEmbedded(t *testing.T) (*embedded, redis.UniversalClient) {
	t.Helper()
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(e.close)
	rdb, err := cli.OpenRedis(t.Context(), e.url())
	must(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	return e, rdb
}

// TestEmbeddedExpires holds that "its keys expire by the clock": a key may live
// up to a tick longer than it was told, and never shorter, however its time to
// live was set.
func TestEmbeddedExpires(t *testing.T) {
	t.Parallel()
	const ttl = 250 * time.Millisecond
	script := redis.NewScript(`redis.call('SET', KEYS[1], 'v') redis.call('PEXPIRE', KEYS[1], ARGV[1])`)
	for name, set := range map[string]func(ctx context.Context, rdb redis.UniversalClient) error{
		"set px": func(ctx context.Context, rdb redis.UniversalClient) error { return rdb.Set(ctx, "k", "v", ttl).Err() },
		"pexpire": func(ctx context.Context, rdb redis.UniversalClient) error {
			return rdb.PExpire(ctx, "k", ttl).Err()
		},
		"script": func(ctx context.Context, rdb redis.UniversalClient) error {
			return ignoreNil(script.Run(ctx, rdb, []string{"k"}, ttl.Milliseconds()).Err())
		},
		"pexpireat": func(ctx context.Context, rdb redis.UniversalClient) error {
			return rdb.PExpireAt(ctx, "k", time.Now().Add(ttl)).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rdb := newEmbedded(t)
			ctx := t.Context()
			must(t, rdb.Set(ctx, "k", "v", 0).Err())
			start := time.Now()
			must(t, set(ctx, rdb))
			redistest.WaitFor(t, "the key to expire", bound, func() bool {
				return rdb.Exists(ctx, "k").Val() == 0
			})
			// PEXPIREAT is a moment in whole milliseconds, rounded down.
			if lived := time.Since(start); lived < ttl-time.Millisecond {
				t.Errorf("lived %s, was told %s", lived, ttl)
			}
		})
	}
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// TestEmbeddedLoopback holds that no other machine reaches the server, which
// has no password.
func TestEmbeddedLoopback(t *testing.T) {
	t.Parallel()
	host, _, err := net.SplitHostPort(cli.EmbeddedAddr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("%s is not on the loopback", cli.EmbeddedAddr)
	}
}
