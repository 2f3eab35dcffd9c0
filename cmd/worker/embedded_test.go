package main

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
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

func TestAddToTTL(t *testing.T) {
	t.Parallel()
	const d = 12*time.Millisecond + time.Microsecond
	for command, want := range map[string]string{
		"PEXPIRE k 100":                  "k 113",
		"PEXPIRE k 100 NX":               "k 113 NX",
		"PSETEX k 100 v":                 "k 113 v",
		"PEXPIREAT k 100":                "k 113",
		"EXPIRE k 100":                   "k 101",
		"SETEX k 100 v":                  "k 101 v",
		"EXPIREAT k 100":                 "k 101",
		"SET k v":                        "k v",
		"SET k 5 PX 100":                 "k 5 PX 113",
		"SET k v NX px 100":              "k v NX px 113",
		"SET k v NX EX 2":                "k v NX PX 2013",
		"SET PX EX PX 1":                 "PX EX PX 14",
		"SET k PX":                       "k PX",
		"SET k v EX x":                   "k v EX x",
		"SET k v EX 0":                   "k v EX 0",
		"SET k v EX 9223372036854775807": "k v EX 9223372036854775807",
		"PEXPIRE k 0":                    "k 0",
		"PEXPIRE k -1":                   "k -1",
		"PEXPIRE k x":                    "k x",
		"PEXPIRE":                        "",
		"GET 100 100":                    "100 100",
		"ZADD k 100 100":                 "k 100 100",
	} {
		words := strings.Fields(command)
		addToTTL(words[0], words[1:], d)
		if got := strings.Join(words[1:], " "); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
}

func TestListenError(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.1:0":            "does not have the address 192.0.2.1",
		"no-such-host.invalid:0": "no address is known for no-such-host.invalid",
		"127.0.0.1:99999":        "invalid port",
	} {
		_, err := net.Listen("tcp", addr)
		if err == nil {
			t.Errorf("%s: no error", addr)
			continue
		}
		if got := listenError(err, addr, "it", "").Error(); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", addr, got, want)
		}
	}
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

// TestEmbeddedCloses holds that close does not wait for clients.
func TestEmbeddedCloses(t *testing.T) {
	t.Parallel()
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	must(t, err)
	c, err := net.Dial("tcp", e.addr())
	must(t, err)
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "+PONG\r\n" {
		t.Fatal(line, err)
	}
	e.close()
}
